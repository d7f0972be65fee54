"""The web page: one file with everything in it, opened from disk.

One module a view decides what is drawn; page.html is the frame, page.css the looks, and the scripts only draw.
"""
