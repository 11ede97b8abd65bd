//! Decodes the unikernel's defmt frames with the names in its image.

use crate::error::{Error, IoContext, Result};
use defmt_decoder::{DecodeError, Table};
use std::path::Path;

/// The table of log messages of one image.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
}

/// What was decoded from one run.
#[derive(Debug, Default)]
pub struct Decoded {
    /// One log message each.
    pub lines: Vec<String>,
    /// Bytes that belong to no message: cut off at the end, or damaged.
    pub lost_bytes: usize,
}

impl Decoder {
    /// The decoder for the image in `elf`; `None` when the image logs nothing.
    ///
    /// # Errors
    /// The file cannot be read, or its table is of another defmt version.
    pub fn for_image(elf: &Path) -> Result<Option<Self>> {
        let data = std::fs::read(elf).context("cannot read", elf)?;
        let table = Table::parse(&data)
            .map_err(|error| Error::Format(format!("the log table of {}: {error:#}", elf.display())))?;
        Ok(table.map(|table| Self { table }))
    }

    /// Decodes everything that one run wrote.
    pub fn decode(&self, bytes: &[u8]) -> Decoded {
        let mut decoder = self.table.new_stream_decoder();
        let mut decoded = Decoded::default();
        let can_recover = self.table.encoding().can_recover();
        for (index, block) in bytes.chunks(256).enumerate() {
            decoder.received(block);
            loop {
                match decoder.decode() {
                    Ok(frame) => decoded.lines.push(frame.display(false).to_string()),
                    Err(DecodeError::UnexpectedEof) => break,
                    Err(DecodeError::Malformed) if can_recover => decoded.lost_bytes += 1,
                    Err(DecodeError::Malformed) => {
                        // Nothing behind it can be told apart any more.
                        decoded.lost_bytes += bytes.len() - index * 256;
                        return decoded;
                    }
                }
            }
        }
        decoded
    }
}
