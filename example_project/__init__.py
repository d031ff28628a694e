"""A shop whose support desk answers e-mails with a durable agent."""
