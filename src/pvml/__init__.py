"""PvML: a transformer that its user can read, trust, train, sample and take apart."""
