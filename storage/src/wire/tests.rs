//! Every message survives the wire, and no bytes make the decoder panic.
