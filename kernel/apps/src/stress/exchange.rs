//! The tasks: each has a socket, keeps requests under way to every task of the other side, and answers theirs.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use dat_nostd::{Adapter, Platform};
use rds_nostd::{
    Arrival, Control, MAX_IOVS, Msg, MsgFlags, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus, Rds,
    RdsError, Received, SocketHandle,
};

use super::error::{InCall, StressError};
use super::memory::{Memory, Part};
use super::message::{self, HEADER_LEN, Header, Op, Rdma, RdmaOp};
use super::options::{MAX_MESSAGE, MAX_TASKS, Options};
use super::pairs::{Pair, Pairs, Slot};
use super::stats::Stats;

/// Without RDMA are the first messages to each task.
const FIRST_RDMA: u32 = 10;
/// Messages that a socket takes in one poll.
const TAKEN_AT_ONCE: usize = 64;

/// What messages are sent from and received into, and what is known of each pair of tasks.
pub(super) struct Tables {
    pub(super) pairs: Pairs,
    pub(super) sent: [u8; MAX_MESSAGE],
    pub(super) received: [u8; MAX_MESSAGE],
}

pub(super) struct Exchange<'s> {
    options: Options,
    tables: &'s mut Tables,
    sockets: [Option<SocketHandle>; MAX_TASKS],
    memory: Option<Memory>,
    /// This side's address and the other one's.
    here: u32,
    there: u32,
    /// Whether it sends requests.
    requests: bool,
    pub(super) stats: Stats,
}

/// How an attempt to send ended.
enum Sent {
    Yes,
    /// Nothing more to be sent to this task now.
    No,
    /// Nothing to any task.
    Full,
}

impl<'s> Exchange<'s> {
    /// Binds the sockets and takes the memory.
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        tables: &'s mut Tables,
        options: Options,
        (there, is_active): (Ipv4Addr, bool),
    ) -> Result<Self, StressError> {
        let IpAddr::V4(here) = adapter.address() else {
            return Err(StressError::Rds { call: "the address", error: RdsError::AddressFamily });
        };
        let longest = rds.longest_message();
        for (switch, len) in [("-q", options.request_len), ("-a", options.ack_len)] {
            if len as usize > longest {
                let range = (HEADER_LEN as u64, longest as u64);
                return Err(StressError::Option { switch, value: len.into(), range });
            }
        }
        tables.pairs.begin(options.tasks.into());
        message::fill(&mut tables.sent);
        let memory = Memory::alloc(adapter, &options)?;
        let mut exchange = Self {
            options,
            tables,
            sockets: [None; MAX_TASKS],
            memory,
            here: here.to_bits(),
            there: there.to_bits(),
            requests: is_active || !options.simplex,
            stats: Stats::default(),
        };
        let bound = exchange.bind(adapter, rds, here).and_then(|()| exchange.register(adapter, rds));
        if let Err(error) = bound {
            // The reason is in `error`.
            let _ = exchange.close(adapter, rds);
            return Err(error);
        }
        Ok(exchange)
    }

    fn bind<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        here: Ipv4Addr,
    ) -> Result<(), StressError> {
        let options = self.options;
        let both = options.request_len as usize + options.ack_len as usize;
        let buffer = usize::from(options.tasks) * options.depth as usize * both * 2;
        for (place, port) in self.sockets.iter_mut().take(options.tasks.into()).zip(options.port + 1..) {
            let socket = rds.bind(SocketAddr::new(here.into(), port)).in_call("bind")?;
            *place = Some(socket);
            rds.set_send_buffer(socket, buffer).in_call("SO_SNDBUF")?;
            rds.set_receive_buffer(adapter, socket, buffer).in_call("SO_RCVBUF")?;
            rds.set_congestion_monitor(socket, options.congestion_monitor).in_call("RDS_CONG_MONITOR")?;
            rds.set_type_of_service(socket, options.tos).in_call("SIOCRDSSETTOS")?;
        }
        Ok(())
    }

    /// Registers the memory that operations read from and write to, so that they take no command of the HCA's firmware.
    fn register<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), StressError> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let to = self.address_of(0);
        for task in 0..usize::from(self.options.tasks) {
            let (first, beyond) =
                (self.slot_of(self.pair_of(task, 0), 0), self.slot_of(self.pair_of(task + 1, 0), 0));
            let Some(parts) = memory.parts(first, beyond - first) else { continue };
            match rds.register_memory(adapter, self.socket(task)?, to, parts) {
                // Without it each operation registers its own.
                Ok(_) | Err(RdsError::NoMemory) => {}
                Err(error) => return Err(StressError::Rds { call: "register_memory", error }),
            }
        }
        Ok(())
    }

    /// Takes what has arrived, and sends what may be unless it is `stopping`. Whether anything moved.
    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        stopping: bool,
    ) -> Result<bool, StressError> {
        let mut moved = false;
        for task in 0..usize::from(self.options.tasks) {
            for _ in 0..TAKEN_AT_ONCE {
                if !self.receive(adapter, rds, task)? {
                    break;
                }
                moved = true;
            }
            for other in 0..usize::from(self.options.tasks) {
                if stopping {
                    break;
                }
                let (sent, stopped) = self.send_to(adapter, rds, task, other)?;
                moved |= sent;
                if stopped {
                    break;
                }
            }
        }
        Ok(moved)
    }

    fn pair_of(&self, task: usize, other: usize) -> usize {
        task * usize::from(self.options.tasks) + other
    }

    fn slot_of(&self, pair: usize, index: u32) -> usize {
        pair * self.options.depth as usize + index as usize
    }

    /// A task of the other side.
    fn address_of(&self, other: usize) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::from_bits(self.there).into(), self.port(other))
    }

    fn port(&self, task: usize) -> u16 {
        self.options.port + 1 + task as u16
    }

    fn socket(&self, task: usize) -> Result<SocketHandle, StressError> {
        self.sockets.get(task).copied().flatten().ok_or(RdsError::BadSocket).in_call("socket")
    }

    /// Takes one thing from a task's socket. False if there is none.
    fn receive<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        task: usize,
    ) -> Result<bool, StressError> {
        let socket = self.socket(task)?;
        match rds.recvmsg(adapter, socket, &mut self.tables.received, MsgFlags::empty()) {
            Ok(Arrival::Message(received)) => self.arrived(adapter, rds, task, &received)?,
            Ok(Arrival::CongestionUpdate(ports)) => self.cleared(task, ports),
            Ok(Arrival::RdmaStatus(notify)) => self.operation_ended(&notify)?,
            Ok(Arrival::Lent(_) | Arrival::Nothing) | Err(RdsError::Again) => return Ok(false),
            Err(error) => return Err(StressError::Rds { call: "recvmsg", error }),
        }
        Ok(true)
    }

    fn cleared(&mut self, task: usize, ports: u64) {
        for other in 0..usize::from(self.options.tasks) {
            let pair = self.pair_of(task, other);
            if ports & rds_nostd::port_mask(self.port(other)) != 0
                && let Some(pair) = self.tables.pairs.pair(pair)
            {
                pair.congested = false;
            }
        }
    }

    /// The operation that went with an answer has ended.
    fn operation_ended(&mut self, notify: &RdmaNotify) -> Result<(), StressError> {
        let slot = notify.user_token as u32 as usize;
        let pair = slot / self.options.depth as usize;
        let Some((pair, place)) = self.tables.pairs.get(pair, slot) else { return Ok(()) };
        (pair.draining, place.in_flight) = (false, false);
        let reads = place.reads.take();
        if notify.status != RdmaStatus::Success {
            return Err(StressError::Operation(notify.status));
        }
        self.compare(slot, Part::Local, reads)
    }

    /// Looks at memory that was read or written, if bytes are to be compared.
    fn compare(&self, slot: usize, part: Part, pattern: Option<u64>) -> Result<(), StressError> {
        let Some((memory, pattern)) = self.memory.as_ref().zip(pattern.filter(|_| self.options.verify))
        else {
            return Ok(());
        };
        memory.mismatch(slot, part, pattern).map_or(Ok(()), |position| Err(StressError::Memory { position }))
    }

    fn arrived<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        task: usize,
        received: &Received,
    ) -> Result<(), StressError> {
        let wrong =
            |part, expected: u64, found: u64| Err(StressError::Message { task, part, expected, found });
        let bytes = self.tables.received.get(..received.len).unwrap_or_default();
        let Some(header) = Header::decode(bytes) else {
            return wrong("length", HEADER_LEN as u64, received.message_len as u64);
        };
        let other = usize::from(received.from.port().wrapping_sub(self.options.port + 1));
        if other >= self.options.tasks.into() {
            return wrong("port", self.port(0).into(), received.from.port().into());
        }
        let len = match header.op {
            Op::Request => self.options.request_len,
            Op::Ack => self.options.ack_len,
        };
        if received.message_len != len as usize {
            return wrong("length", len.into(), received.message_len as u64);
        }
        let (index, depth) = (self.pair_of(task, other), self.options.depth);
        let Some(pair) = self.tables.pairs.pair(index) else { return Ok(()) };
        let due = pair.due_index(header.op, depth);
        for (part, expected, found) in [
            ("number", pair.receive_sequence, header.sequence),
            ("place", due, header.index.into()),
            ("sender", self.there, header.from.0),
            ("sender's port", received.from.port().into(), header.from.1.into()),
            ("receiver", self.here, header.to.0),
            ("receiver's port", (self.options.port + 1 + task as u16).into(), header.to.1.into()),
        ] {
            if expected != found {
                return wrong(part, expected.into(), found.into());
            }
        }
        if self.options.verify
            && let Some(at) = message::mismatch(bytes)
        {
            return wrong("a wrong byte at", 0, at as u64);
        }
        self.stats.bytes += received.message_len as u64;
        pair.receive_sequence = pair.receive_sequence.wrapping_add(1);
        let slot = index * depth as usize + due as usize;
        match header.op {
            Op::Request => {
                pair.unacked += 1;
                pair.receive_index = (due + 1) % depth;
                self.stats.received += 1;
                self.requested(index, slot, &header, received.cookie)
            }
            Op::Ack => {
                pair.pending = pair.pending.saturating_sub(1);
                self.answered(adapter, rds, task, slot, &header)
            }
        }
    }

    /// A request: what it says of RDMA goes with the answer.
    fn requested(
        &mut self,
        pair: usize,
        slot: usize,
        header: &Header,
        cookie: Option<RdmaCookie>,
    ) -> Result<(), StressError> {
        let asked = header.rdma.map(|rdma| Rdma { key: cookie.map_or(rdma.key, |cookie| cookie.0), ..rdma });
        let asked = asked.filter(|rdma| rdma.key != 0);
        if let Some(rdma) = asked {
            let Options { rdma_len, vector, tasks, .. } = self.options;
            let task = pair / usize::from(tasks);
            for (part, expected, found) in
                [("RDMA bytes", rdma_len, rdma.len), ("RDMA pieces", vector, rdma.vector)]
            {
                if expected != found {
                    let (expected, found) = (expected.into(), found.into());
                    return Err(StressError::Message { task, part, expected, found });
                }
            }
        }
        if let Some((_, place)) = self.tables.pairs.get(pair, slot) {
            place.asked = asked;
        }
        Ok(())
    }

    /// An answer: the operation on the memory that its request offered is done.
    fn answered<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        task: usize,
        slot: usize,
        header: &Header,
    ) -> Result<(), StressError> {
        let now = adapter.now().as_nanos();
        let sent_at = self.tables.pairs.get(0, slot).map_or(now, |(_, place)| place.sent_at);
        self.stats.answers += 1;
        self.stats.answer_ns += now.saturating_sub(sent_at);
        let Some(rdma) = header.rdma.filter(|rdma| rdma.key != 0) else { return Ok(()) };
        if !self.options.use_once && !self.options.cache_mrs {
            // Whoever broke the connection may have used it up.
            let _ = rds.free_mr(adapter, self.socket(task)?, RdmaCookie(rdma.key));
        }
        match rdma.op {
            RdmaOp::Write => {
                self.stats.rdma_in += u64::from(rdma.len);
                self.compare(slot, Part::Offered, Some(rdma.pattern))
            }
            RdmaOp::Read => {
                self.stats.rdma_out += u64::from(rdma.len);
                Ok(())
            }
        }
    }

    /// Answers a task of the other side and sends it requests, as far as possible. Whether anything was sent, and whether no other one is
    /// to be tried now.
    fn send_to<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        task: usize,
        other: usize,
    ) -> Result<(bool, bool), StressError> {
        let index = self.pair_of(task, other);
        let mut moved = false;
        loop {
            let Some(pair) = self.tables.pairs.pair(index).copied() else { return Ok((moved, true)) };
            if pair.draining || pair.congested && self.options.congestion_monitor {
                return Ok((moved, false));
            }
            let sent = if pair.unacked > 0 {
                self.answer(adapter, rds, task, other)?
            } else if self.requests && pair.pending < self.options.depth {
                self.request(adapter, rds, task, other)?
            } else {
                Sent::No
            };
            match sent {
                Sent::Yes => moved = true,
                Sent::No => return Ok((moved, false)),
                Sent::Full => return Ok((moved, true)),
            }
        }
    }

    fn answer<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        task: usize,
        other: usize,
    ) -> Result<Sent, StressError> {
        let index = self.pair_of(task, other);
        let Some(place) = self.tables.pairs.pair(index).map(|pair| pair.unanswered(self.options.depth))
        else {
            return Ok(Sent::No);
        };
        let slot = self.slot_of(index, place);
        let Some((pair, entry)) = self.tables.pairs.get(index, slot) else { return Ok(Sent::No) };
        let asked = entry.asked;
        if asked.is_some() && entry.in_flight {
            pair.draining = true;
            return Ok(Sent::No);
        }
        let header = self.header(task, other, place, Op::Ack, asked);
        let operate = |this: &mut Self, memory: &Memory| {
            this.operate(adapter, rds, (task, other), slot, &header, memory)
        };
        let sent = match self.with_memory(asked.is_some(), operate) {
            Some(sent) => sent?,
            None => self.send(adapter, rds, (task, other), &header, None)?,
        };
        let Some((pair, entry)) = self.if_sent(&sent, index, slot) else { return Ok(sent) };
        pair.unacked -= 1;
        if let Some(rdma) = asked {
            let len = u64::from(rdma.len);
            entry.in_flight = true;
            entry.reads = (rdma.op == RdmaOp::Read).then_some(rdma.pattern);
            match rdma.op {
                RdmaOp::Write => self.stats.rdma_out += len,
                RdmaOp::Read => self.stats.rdma_in += len,
            }
        }
        Ok(sent)
    }

    /// What `work` does with the memory for RDMA, if it is wanted and there is any.
    fn with_memory<R>(&mut self, wanted: bool, work: impl FnOnce(&mut Self, &Memory) -> R) -> Option<R> {
        let memory = if wanted { self.memory.take() } else { None }?;
        let done = work(self, &memory);
        self.memory = Some(memory);
        Some(done)
    }

    /// The pair and the place of a message, if it was sent.
    fn if_sent(&mut self, sent: &Sent, pair: usize, slot: usize) -> Option<(&mut Pair, &mut Slot)> {
        self.tables.pairs.get(pair, slot).filter(|_| matches!(sent, Sent::Yes))
    }

    /// Sends an answer, and before it does with the memory that the request offered what that asked for.
    fn operate<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        (task, other): (usize, usize),
        slot: usize,
        header: &Header,
        memory: &Memory,
    ) -> Result<Sent, StressError> {
        let Some(rdma) = &header.rdma else { return Ok(Sent::No) };
        let vector = self.options.vector as usize;
        // As many pieces as there are, if so many can be; else all in one, as they lie side by side.
        let Some(all) = memory.part(slot, Part::Local) else { return Ok(Sent::No) };
        let (mut pieces, mut count) = ([all; MAX_IOVS], 1);
        if vector <= MAX_IOVS {
            count = vector;
            for (place, piece) in
                pieces.iter_mut().zip((0..vector).map_while(|index| memory.piece(slot, index)))
            {
                *place = piece;
            }
        }
        let writes = rdma.op == RdmaOp::Write;
        if self.options.verify {
            memory.fill(slot, Part::Local, if writes { rdma.pattern } else { !rdma.pattern });
        }
        let mut flags = RdmaFlags::NOTIFY_ME;
        flags.set(RdmaFlags::READWRITE, writes);
        flags.set(RdmaFlags::FENCE, !writes && self.options.fence);
        let args = RdmaArgs {
            cookie: RdmaCookie(rdma.key),
            remote_offset: rdma.offset,
            remote_bytes: u64::from(rdma.len) * vector as u64,
            local: pieces.get(..count).unwrap_or_default(),
            flags,
            user_token: slot as u64,
        };
        let control = Control { rdma: Some(args), ..Control::default() };
        self.send(adapter, rds, (task, other), header, Some(&control))
    }

    fn request<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        task: usize,
        other: usize,
    ) -> Result<Sent, StressError> {
        let index = self.pair_of(task, other);
        let Some(before) = self.tables.pairs.pair(index).copied() else { return Ok(Sent::No) };
        let slot = self.slot_of(index, before.send_index);
        let next = (before.send_index + 1) % self.options.depth;
        let began = adapter.now().as_nanos();
        let offer =
            |this: &mut Self, memory: &Memory| this.request_rdma(adapter, rds, (task, other), slot, memory);
        let sent = match self.with_memory(before.send_sequence > FIRST_RDMA, offer) {
            Some(sent) => sent?,
            None => {
                let header = self.header(task, other, before.send_index, Op::Request, None);
                self.send(adapter, rds, (task, other), &header, None)?
            }
        };
        let Some((pair, entry)) = self.if_sent(&sent, index, slot) else { return Ok(sent) };
        entry.sent_at = began;
        pair.send_index = next;
        pair.pending += 1;
        self.stats.sent += 1;
        self.stats.send_ns += adapter.now().as_nanos().saturating_sub(began);
        Ok(sent)
    }

    /// Sends a request that offers memory.
    fn request_rdma<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        (task, other): (usize, usize),
        slot: usize,
        memory: &Memory,
    ) -> Result<Sent, StressError> {
        let to = self.address_of(other);
        let (index, socket) = (self.pair_of(task, other), self.socket(task)?);
        let Options { direction, rdma_len, vector, use_once, use_get_mr, cache_mrs, .. } = self.options;
        let Some(part) = memory.part(slot, Part::Offered) else { return Ok(Sent::No) };
        let Some((pair, entry)) = self.tables.pairs.get(index, slot) else { return Ok(Sent::No) };
        let before = *pair;
        let op = pair.next_op(direction);
        let (place, pattern) = (pair.send_index, u64::from(pair.send_sequence) << 32 | slot as u64);
        let mut flags = RdmaFlags::READWRITE;
        flags.set(RdmaFlags::USE_ONCE, use_once);
        if use_get_mr && entry.key == 0 {
            match rds.get_mr_for_dest(adapter, socket, to, part, flags) {
                Ok(cookie) => entry.key = cookie.0,
                Err(RdsError::Exhausted) => return Ok(Sent::No),
                Err(error) => return Err(StressError::Rds { call: "RDS_GET_MR_FOR_DEST", error }),
            }
        }
        let key = entry.key;
        if self.options.verify {
            memory.fill(slot, Part::Offered, if op == RdmaOp::Read { pattern } else { 0 });
        }
        let rdma = Rdma { op, address: part.va() as u64, offset: 0, pattern, key, len: rdma_len, vector };
        let header = self.header(task, other, place, Op::Request, Some(rdma));
        let control = if key == 0 {
            Control { map: Some((part, flags)), ..Control::default() }
        } else {
            Control { dest: Some(RdmaCookie(key)), ..Control::default() }
        };
        let sent = self.send(adapter, rds, (task, other), &header, Some(&control))?;
        let Some((pair, entry)) = self.tables.pairs.get(index, slot) else { return Ok(sent) };
        match sent {
            Sent::Yes if !cache_mrs => entry.key = 0,
            Sent::Yes => {}
            // The same operation is tried again.
            Sent::No | Sent::Full => *pair = Pair { congested: pair.congested, ..before },
        }
        Ok(sent)
    }

    fn header(&mut self, task: usize, other: usize, place: u32, op: Op, rdma: Option<Rdma>) -> Header {
        let index = self.pair_of(task, other);
        let sequence = self.tables.pairs.pair(index).map_or(0, |pair| pair.send_sequence);
        Header {
            sequence,
            from: (self.here, self.port(task)),
            to: (self.there, self.port(other)),
            index: place as u16,
            op,
            rdma,
        }
    }

    /// Sends a message of a task to one of the other side.
    fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        (task, other): (usize, usize),
        header: &Header,
        control: Option<&Control<'_>>,
    ) -> Result<Sent, StressError> {
        let len = match header.op {
            Op::Request => self.options.request_len,
            Op::Ack => self.options.ack_len,
        };
        let to = self.address_of(other);
        let (socket, index) = (self.socket(task)?, self.pair_of(task, other));
        let Tables { pairs, sent, .. } = &mut *self.tables;
        if let Some(head) = sent.first_chunk_mut() {
            *head = header.encode();
        }
        let payload = sent.get(..len as usize).unwrap_or_default();
        // The others of this look follow: `Rds::poll` is next.
        let message = Msg { control, flags: MsgFlags::MORE, ..Msg::to(&to, payload) };
        let Some(pair) = pairs.pair(index) else { return Ok(Sent::No) };
        match rds.sendmsg(adapter, socket, message) {
            Ok(_) => {
                pair.send_sequence = pair.send_sequence.wrapping_add(1);
                self.stats.bytes += u64::from(len);
                Ok(Sent::Yes)
            }
            Err(RdsError::Congested) => {
                pair.congested = true;
                Ok(Sent::No)
            }
            // Offers come free as others are used, operations as their ends are read.
            Err(RdsError::Exhausted) => Ok(Sent::No),
            Err(RdsError::Again | RdsError::NoBufferSpace) => Ok(Sent::Full),
            Err(error) => Err(StressError::Rds { call: "sendmsg", error }),
        }
    }

    /// Closes the sockets, and gives the memory back.
    pub(super) fn close<P: Platform>(
        self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), StressError> {
        for socket in self.sockets.into_iter().flatten() {
            rds.close(adapter, socket).in_call("close")?;
        }
        self.free(adapter)
    }

    /// Frees the memory. Nothing uses it once RDS has stopped.
    pub(super) fn free<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), StressError> {
        self.memory.map_or(Ok(()), |memory| memory.free(adapter))
    }
}
