"""Accepting: what agents send is checked, made durable in one transaction, and answered; nobody looks into it yet."""
