"""Why a wrong candidate is wrong: evidence of one trial, patterns in its tensors, hypotheses about its code, words."""
