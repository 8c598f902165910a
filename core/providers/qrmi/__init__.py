"""Vendors through the qrmi library: Alice & Bob, IQM, Pasqal in the cloud and on the premises."""
