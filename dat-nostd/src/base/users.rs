//! Counts of the objects that refer to an object.

/// Number of objects that refer to an object, which must not be freed meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Users(u32);

impl Users {
    /// Returns whether an object refers to it.
    pub(crate) fn is_any(&self) -> bool {
        self.0 > 0
    }

    /// Counts an object in or out.
    pub(crate) fn count(&mut self, come: bool) {
        if come { self.attach() } else { self.detach() }
    }

    /// Counts an object in.
    pub(crate) fn attach(&mut self) {
        self.0 += 1;
    }

    /// Counts an object out.
    pub(crate) fn detach(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }
}
