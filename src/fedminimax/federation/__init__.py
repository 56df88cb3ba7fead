"""What a round's program sees of a federation: clients, cohorts, nodes; who answers, what is let through, what it costs."""
