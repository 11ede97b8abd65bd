//! `bootset.efi`: shows and sets the settings of `rdmaboot.efi`.

use crate::entry::{self, Program};
use apps::boot::Settings;
use r_efi::efi::Status;

/// Without arguments it shows the settings, with `clear` it deletes them, and other words replace them.
pub fn run(program: &mut Program) -> Status {
    let line = entry::arguments();
    let changed = match line.as_str() {
        "" => Ok(()),
        "clear" => entry::set_settings(""),
        line => match Settings::parse(line) {
            Ok(_) => entry::set_settings(line),
            Err(error) => {
                program.line(format_args!("error: {error}"));
                return Status::INVALID_PARAMETER;
            }
        },
    };
    if let Err(status) = changed {
        program.line(format_args!("error: SetVariable: status {:#x}", status.as_usize()));
        return status;
    }
    match entry::settings() {
        Some(line) => program.line(format_args!("@rdmaboot settings: {line}")),
        None => program.line(format_args!(
            "@rdmaboot settings: none; bootset.efi ip=ADDRESS/PREFIX server=ADDRESS [gateway=] [image=] [initrd=] [wait=SECONDS] [limit=MIB] [args=REST OF THE LINE]"
        )),
    }
    Status::SUCCESS
}
