"""The support desk: customers, their orders, and the tickets that their e-mails become."""
