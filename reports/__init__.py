"""The report of a run as one page that needs nothing else; plot.py --html is the command.

sources.py reads what a run left in its folder, facts.py puts that into the words and tables of the page, curves.py
thins its curves, page.py puts all of it into page.html with chart.js, page.js and page.css, which are what runs in the
browser. Read them in this order. Only the standard library is needed.
"""
