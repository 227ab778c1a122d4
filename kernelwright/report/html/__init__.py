"""The report as one HTML page that loads nothing from elsewhere and needs no script.

What is said is gathered in Python, as plain data (``page.py`` is the page's order); how it is marked up stands in the
``.jinja`` files beside it, whose texts are escaped: a user's code and names are data.
"""
