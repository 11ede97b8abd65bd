//! QEMU's arguments for a served HCA.

use std::path::Path;

/// Returns the arguments for guest memory that the server can map.
#[must_use]
pub fn memory_arguments(memory_mib: u32) -> [String; 6] {
    [
        "-machine".into(),
        "q35,memory-backend=memory,sata=off,smbus=off".into(),
        "-m".into(),
        memory_mib.to_string(),
        "-object".into(),
        format!("memory-backend-memfd,id=memory,size={memory_mib}M,share=on"),
    ]
}

/// Returns the value of `-device` for an emulated HCA. The device accepts its socket only in JSON.
#[must_use]
pub fn hca_argument(socket: &Path) -> String {
    serde_json::json!({
        "driver": "vfio-user-pci",
        "socket": { "type": "unix", "path": socket.to_string_lossy() },
    })
    .to_string()
}
