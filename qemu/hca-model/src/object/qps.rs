//! The table of queue pairs: their numbers, the management QPs, multicast groups.

use super::qp::Qp;
use super::table::Table;
use mlx5_prm::value::ServiceType;
use std::collections::{BTreeMap, BTreeSet};

/// First QP number; 0 and 1 are the wire's numbers of the management QPs.
pub const FIRST_QPN: u32 = 0x40;

/// All queue pairs.
#[derive(Debug)]
pub struct Qps {
    table: Table<Qp>,
    /// The QP that serves wire number 0.
    qp0: Option<u32>,
    /// The QP that serves wire number 1.
    qp1: Option<u32>,
    multicast: Multicast,
}

impl Qps {
    /// Host memory that an attachment to a multicast group takes, in bytes.
    pub const ATTACHMENT_MEMORY: u64 = 128;

    /// An empty table.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { table: Table::new(FIRST_QPN, limit), qp0: None, qp1: None, multicast: Multicast::new() }
    }

    /// Number of QPs.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the QP with a number in commands and doorbells.
    #[must_use]
    #[inline]
    pub fn get(&self, qpn: u32) -> Option<&Qp> {
        self.table.get(qpn)
    }

    /// Like [`get`](Self::get), to change the QP.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        self.table.get_mut(qpn)
    }

    /// Returns the QP that the destination QP number of a packet refers to.
    #[must_use]
    #[inline]
    pub fn by_wire_number(&mut self, number: u32) -> Option<&mut Qp> {
        let qpn = match number {
            0 => self.qp0?,
            1 => self.qp1?,
            other => other,
        };
        self.table.get_mut(qpn)
    }

    /// All QPs with their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Qp)> {
        self.table.iter()
    }

    /// Like [`iter`](Self::iter), to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Qp)> {
        self.table.iter_mut()
    }

    /// Returns the number of the first QP that `uses` holds for.
    pub fn user(&self, uses: impl Fn(&Qp) -> bool) -> Option<u32> {
        self.table.iter().find(|(_, qp)| uses(qp)).map(|(qpn, _)| qpn)
    }

    /// Returns the QP of a service that a port has only one of.
    #[must_use]
    pub const fn management(&self, service: ServiceType) -> Option<u32> {
        match service {
            ServiceType::QP0 => self.qp0,
            ServiceType::QP1 => self.qp1,
            _ => None,
        }
    }

    /// Adds a QP and gives it its number, which it returns; `None` when the table is full.
    pub fn insert(&mut self, qp: Qp) -> Option<u32> {
        let service = qp.service();
        let qpn = self.table.insert(|qpn| qp.numbered(qpn))?;
        match service {
            ServiceType::QP0 => self.qp0 = Some(qpn),
            ServiceType::QP1 => self.qp1 = Some(qpn),
            _ => {}
        }
        Some(qpn)
    }

    /// Removes a QP and its attachments. Returns it and how many attachments it had.
    pub fn remove(&mut self, qpn: u32) -> Option<(Box<Qp>, usize)> {
        let qp = self.table.remove(qpn)?;
        for management in [&mut self.qp0, &mut self.qp1] {
            if *management == Some(qpn) {
                *management = None;
            }
        }
        Some((qp, self.multicast.detach_all(qpn)))
    }

    /// Moves the doorbell records of the QPs of QP1 out of the device's reach, or back.
    pub fn toggle_management_records(&mut self) {
        let receiver = self.qp1;
        for (qpn, qp) in self.table.iter_mut() {
            if Some(qpn) == receiver || qp.source_qpn() == 1 {
                qp.rings_mut().toggle_record();
            }
        }
    }

    /// The QPs of a multicast group, in order of their attachment.
    #[must_use]
    pub fn members(&self, group: &[u8; 16]) -> &[u32] {
        self.multicast.members(group)
    }

    /// Calls `f` with each QP of a multicast group, in order of their attachment.
    pub fn for_members(&mut self, group: &[u8; 16], mut f: impl FnMut(&mut Qp)) {
        for qpn in self.multicast.members(group) {
            if let Some(qp) = self.table.get_mut(*qpn) {
                f(qp);
            }
        }
    }

    /// Attachments of all groups together.
    #[must_use]
    pub fn attachments(&self) -> usize {
        self.multicast.attachments.len()
    }

    /// Attaches a QP that is not a member.
    pub fn attach(&mut self, group: [u8; 16], qpn: u32) {
        self.multicast.attach(group, qpn);
    }

    /// Detaches a QP. Returns whether it was a member.
    pub fn detach(&mut self, group: [u8; 16], qpn: u32) -> bool {
        self.multicast.detach(group, qpn)
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.table.clear();
        self.qp0 = None;
        self.qp1 = None;
        self.multicast = Multicast::new();
    }
}

/// Which QPs are attached to which multicast group.
#[derive(Debug)]
struct Multicast {
    groups: BTreeMap<[u8; 16], Vec<u32>>,
    /// The same by QP.
    attachments: BTreeSet<(u32, [u8; 16])>,
}

impl Multicast {
    const fn new() -> Self {
        Self { groups: BTreeMap::new(), attachments: BTreeSet::new() }
    }

    fn members(&self, group: &[u8; 16]) -> &[u32] {
        self.groups.get(group).map_or(&[], Vec::as_slice)
    }

    fn attach(&mut self, group: [u8; 16], qpn: u32) {
        self.groups.entry(group).or_default().push(qpn);
        self.attachments.insert((qpn, group));
    }

    fn detach(&mut self, group: [u8; 16], qpn: u32) -> bool {
        if !self.attachments.remove(&(qpn, group)) {
            return false;
        }
        if let Some(members) = self.groups.get_mut(&group) {
            members.retain(|member| *member != qpn);
            if members.is_empty() {
                self.groups.remove(&group);
            }
        }
        true
    }

    /// Detaches a QP from all of its groups. Returns their number.
    fn detach_all(&mut self, qpn: u32) -> usize {
        let mut count = 0;
        while let Some((_, group)) =
            self.attachments.range((qpn, [0; 16])..=(qpn, [0xff; 16])).next().copied()
        {
            self.detach(group, qpn);
            count += 1;
        }
        count
    }
}
