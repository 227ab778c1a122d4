"""Text of emitted files that hold their kernels compiled: which library is for the machine.

Conditions (:mod:`kernelwright.emit.assembly`): CUDA.
"""

EMBEDDED = '''\
_kernelwright_unpacked = {}  # libraries of this file by the names under which they are kept


def _kernelwright_unfit(label):
    """Why a library of this file is not for this machine; "" where it is."""
    here = f"{platform.system()} {platform.machine()}"
    if here != label["system"]:
        return f"this is {here}"
    if label["glibc"]:
        library, version = platform.libc_ver()
        if library != "glibc" or list(map(int, version.split("."))) < list(map(int, label["glibc"].split("."))):
            return f"it needs glibc {label['glibc']}, and here is {library or 'another C library'} {version}".rstrip()
    if CUDA:
        toolkit = [int(part) for part in label["toolkit"].split(".")]
        if str(torch.version.cuda).partition(".")[0] != str(toolkit[0]):
            return f"it needs a PyTorch of CUDA {toolkit[0]}, and this one's is {torch.version.cuda}"
        capability, driver = torch.cuda.get_device_capability(), ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver))
        for code in label["codes"].split():
            number = code.partition("_")[2].rstrip("a")
            made_for = int(number[:-1]), int(number[-1])
            if code.startswith("compute_"):  # PTX, which the driver compiles
                fits = made_for <= capability and driver.value >= 1000 * toolkit[0] + 10 * toolkit[1]
            elif code.endswith("a"):
                fits = made_for == capability
            else:
                fits = made_for[0] == capability[0] and made_for <= capability
            if fits:
                return ""
        return f"this device is of compute capability {capability[0]}.{capability[1]}"
    else:
        with open("/proc/cpuinfo") as lines:
            found = next((line for line in lines if line.startswith("flags")), "").split()
        missing = [flag for flag in label["flags"].split() if flag not in found]
        return f"this processor lacks {' '.join(missing)}" if missing else ""


def _kernelwright_fitting():
    """The first library of this file that is for this machine, and its bytes; None and None where there is none."""
    import base64
    import zlib

    for label in _KERNELWRIGHT_LIBRARIES:
        try:
            label["unfit"] = label.get("unfit") or _kernelwright_unfit(label)
            if not label["unfit"]:
                made = zlib.decompress(base64.b64decode(label["packed"]))
                if hashlib.sha256(made).hexdigest() == label["sha256"]:
                    return label, made
                label["unfit"] = "its bytes are not those that were put in"
        except Exception as error:
            label["unfit"] = f"it can't be read ({error})"
    reasons = "; ".join(f"{label['for']}: {label['unfit']}" for label in _KERNELWRIGHT_LIBRARIES)
    warnings.warn(f"{_KERNELWRIGHT_NAME}: no library in this file is for this machine ({reasons}); the source of the "
                  "kernels is compiled", RuntimeWarning, stacklevel=2)
    return None, None
'''
