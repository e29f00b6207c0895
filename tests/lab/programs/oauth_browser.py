"""A browser with a person before it who agrees to everything.

python oauth_browser.py URL
"""

import re
import sys

import httpx2

with httpx2.Client(timeout=30, follow_redirects=True) as browser:
    page = browser.get(sys.argv[1])
    link = re.search(r'href="([^"]+)"', page.text)[1]
    browser.get(page.url.join(link)).raise_for_status()
