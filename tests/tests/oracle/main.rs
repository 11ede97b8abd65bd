//! What programs that are not ours say of the model's packets.

mod tshark;
