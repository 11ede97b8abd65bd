//! Decodes the unikernel's defmt frames with the names in its image.

use crate::error::{Error, IoContext, Result};
use defmt_decoder::{DecodeError, Table};
use std::path::Path;

/// Table of the log messages of an image.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
}

/// Decoded log of a run.
#[derive(Debug, Default)]
pub struct Decoded {
    /// Log messages.
    pub lines: Vec<String>,
    /// Number of bytes that belong to no message: truncated or damaged frames.
    pub lost_bytes: usize,
}

impl Decoder {
    /// Returns the decoder for the image in `elf`, or `None` if the image logs nothing.
    ///
    /// # Errors
    /// The file cannot be read, or its table is of a different defmt version.
    pub fn for_image(elf: &Path) -> Result<Option<Self>> {
        let data = std::fs::read(elf).context("cannot read", elf)?;
        let table = Table::parse(&data)
            .map_err(|error| Error::Format(format!("the log table of {}: {error:#}", elf.display())))?;
        Ok(table.map(|table| Self { table }))
    }

    /// Decodes the complete output of a run.
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
                        // Frame boundaries after it are lost.
                        decoded.lost_bytes += bytes.len() - index * 256;
                        return decoded;
                    }
                }
            }
        }
        decoded
    }
}
