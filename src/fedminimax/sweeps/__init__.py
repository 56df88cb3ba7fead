"""Many runs of one method: what they try, how they share a program, and what comes of it (:func:`fedminimax.sweep`)."""
