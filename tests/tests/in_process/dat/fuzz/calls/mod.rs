//! Random calls with good and bad arguments in every order, against the [`Model`]: a call must succeed if nothing forbids it,
//! and otherwise answer with a code of something that does. One file for each family of calls.

mod endpoints;
mod events;
mod memory;
mod services;

use crate::dat::fuzz::model::{Ep, Evd, Lmr, Model, reachable};
use ReturnType::*;
use dat_nostd::*;
use harness::WorldConfig;
use harness::net::{Net, Node};
use harness::player::NODE_MEMORY;
use harness::seeds::{Random, in_processes, long, only_seed, with_seed};

/// Steps of one seed.
const STEPS: u64 = 12_000;
const NONE: CompletionFlags = CompletionFlags::empty();
/// More of a kind are not made.
const MOST: usize = 10;

/// The consumer of one node.
struct Caller {
    index: usize,
    model: Model,
    memory: DmaBuffer,
    calls: u64,
    refused: u64,
    established: u64,
}

/// The objects of a step, which may be nonsense, and what is wrong with each for most calls.
struct Chosen {
    now: u64,
    ia: IaHandle,
    evd: EvdHandle,
    ep: EpHandle,
    pz: PzHandle,
    cno: CnoHandle,
    srq: SrqHandle,
    /// The endpoint's, if it lives.
    state: Option<EpState>,
    no_ia: Option<ReturnType>,
    no_evd: Option<ReturnType>,
    no_ep: Option<ReturnType>,
    no_pz: Option<ReturnType>,
    no_cno: Option<ReturnType>,
    no_srq: Option<ReturnType>,
    foreign_pz: Option<ReturnType>,
    foreign_evd: Option<ReturnType>,
    foreign_cno: Option<ReturnType>,
    foreign_ep: Option<ReturnType>,
}

impl Chosen {
    /// The code if the endpoint lives and is in none of these states.
    fn wrong(&self, legal: &[EpState]) -> Option<ReturnType> {
        self.state.and_then(|state| unless(legal.contains(&state), InvalidState))
    }
}

/// A handle: mostly one that lives, else nonsense.
macro_rules! some {
    ($self:ident, $random:ident, $table:ident, $handle:ident) => {{
        let live: Vec<$handle> = $self.model.$table.keys().copied().collect();
        if live.is_empty() || $random.one_in(12) {
            $handle::from_bits($self.nonsense($random))
        } else {
            $random.pick(&live)
        }
    }};
}

use some;

/// The code if a condition is violated.
fn unless(legal: bool, code: ReturnType) -> Option<ReturnType> {
    (!legal).then_some(code)
}

impl Caller {
    fn nonsense(&self, random: &mut Random) -> u64 {
        let dead = &self.model.dead;
        match random.below(4) {
            0 if !dead.is_empty() => dead[random.below(dead.len() as u64) as usize],
            1 => random.next(),
            2 => random.below(3),
            // A plausible kind, place and generation; not of what comes into being unasked, requests and the endpoints of the
            // provider, which a guess could name before their event tells of them.
            _ => {
                let kind = random.below(12);
                let late = if kind < 2 { 1 << 20 } else { 0 };
                (1 + kind) << 56 | random.below(3) << 48 | random.below(80) << 32 | (late + random.below(6))
            }
        }
    }

    /// Judges an answer by what was violated and what may happen besides; whether it is success.
    #[track_caller]
    fn judge<T>(
        &mut self,
        call: &str,
        answer: &DatResult<T>,
        violated: &[Option<ReturnType>],
        besides: &[ReturnType],
    ) -> bool {
        self.calls += 1;
        let violated: Vec<ReturnType> = violated.iter().copied().flatten().collect();
        match answer {
            Ok(_) => {
                assert!(violated.is_empty(), "{call} succeeded in spite of {violated:?}");
                true
            }
            Err(code) => {
                self.refused += 1;
                let kind = code.kind().expect("a code of the specification");
                let allowed = violated.contains(&kind) || besides.contains(&kind);
                assert!(allowed, "{call}: {code} instead of {violated:?}, besides {besides:?}");
                false
            }
        }
    }

    /// The endpoint's state now, which it must be able to have come to.
    fn state(&mut self, node: &Node, ep: EpHandle) -> Option<EpState> {
        let known = self.model.eps.get_mut(&ep)?;
        let now = node.ep_get_status(ep).expect("lives").state;
        assert!(reachable(known.state).contains(&now), "{ep:?} came from {:?} to {now:?}", known.state);
        known.state = now;
        Some(now)
    }

    fn update(&mut self, node: &Node, ep: EpHandle, may_be: &[EpState]) {
        let now = node.ep_get_status(ep).expect("lives").state;
        assert!(may_be.contains(&now), "{now:?} instead of {may_be:?}");
        self.model.eps.get_mut(&ep).expect("known").state = now;
    }

    /// What an event says is true of objects that live.
    fn event(&mut self, node: &Node, from: EvdHandle, event: Event) {
        assert_eq!(event.evd, from);
        let flags = self.model.evds[&from].flags;
        match event.data {
            EventData::Software { .. } => assert!(flags.contains(EvdFlags::SOFTWARE)),
            EventData::Async { .. } => assert!(flags.contains(EvdFlags::ASYNC)),
            EventData::Dto(done) => {
                let ep = self.model.eps.get(&done.ep).expect("a completion of an EP that lives");
                let receive = done.operation == DtoOperation::Receive;
                assert_eq!(if receive { ep.recv } else { ep.request }, Some(from));
            }
            EventData::RmrBind(_) => assert!(flags.contains(EvdFlags::RMR_BIND)),
            EventData::Connection { ep, event, .. } => {
                self.established += u64::from(event == ConnectionEvent::Established);
                let ep = self.model.eps.get(&ep).expect("an event of an EP that lives");
                assert_eq!(ep.connect, Some(from));
            }
            EventData::ConnectionRequest { cr, sp, .. } => {
                let ia = match sp {
                    ServicePoint::Psp(psp) => self.model.psps.get(&psp).map(|psp| psp.0),
                    ServicePoint::Rsp(rsp) => self.model.rsps.get(&rsp).map(|rsp| rsp.0),
                };
                let asked = node.cr_query(cr).expect("a request that waits");
                if let Some(ep) = asked.local_ep
                    && !self.model.eps.contains_key(&ep)
                {
                    let made = node.ep_query(ep).expect("the provider's EP");
                    assert_eq!(made.state, EpState::TentativeConnectionPending);
                    let ia = made.ia;
                    let (pz, recv, request) = (made.pz, made.recv_evd, made.request_evd);
                    let connect = made.connect_evd;
                    let state = made.state;
                    self.model.eps.insert(ep, Ep { ia, pz, recv, request, connect, srq: None, state });
                }
                self.model.crs.insert(cr, (ia, asked.local_ep));
            }
        }
    }

    fn segment(&self, random: &mut Random) -> (LmrTriplet, Option<(PzHandle, MemPriv)>) {
        let lmrs: Vec<&Lmr> = self.model.lmrs.values().collect();
        if lmrs.is_empty() || random.one_in(15) {
            return (LmrTriplet::new(random.next() as u32 | 0x4000_0000, random.next(), 8), None);
        }
        let lmr = lmrs[random.below(lmrs.len() as u64) as usize];
        (LmrTriplet { segment_length: random.below(4096), ..lmr.triplet }, Some((lmr.pz, lmr.rights)))
    }

    /// An IA with something of everything that connections need.
    fn populate(&mut self, node: &mut Node) {
        let (ia, evd) = node.ia_open("ib0", 8, None).expect("there is room");
        self.model.ias.insert(ia, evd);
        let made = Evd { ia, flags: EvdFlags::ASYNC, waitable: true, waiter: None, cno: None };
        self.model.evds.insert(evd, made);
        let pz = node.pz_create(ia).expect("there is room");
        self.model.pzs.insert(pz, ia);
        let lmr = node.lmr_create(ia, &self.memory, pz, MemPriv::ALL).expect("there is room");
        let triplet = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, 0);
        self.model.lmrs.insert(lmr.lmr, Lmr { ia, pz, triplet, rights: MemPriv::ALL });
        let flags = EvdFlags::all() - EvdFlags::ASYNC;
        for _ in 0..2 {
            let evd = node.evd_create(ia, 32, None, flags).expect("there is room");
            self.model.evds.insert(evd, Evd { ia, flags, waitable: true, waiter: None, cno: None });
        }
    }

    fn step(&mut self, node: &mut Node, random: &mut Random, now: u64) {
        if self.model.ias.is_empty() {
            self.populate(node);
        }
        let chosen = self.choose(node, random, now);
        match random.below(68) {
            draw @ 0..10 => self.memory(node, random, draw, &chosen),
            draw @ (10..34 | 64..68) => self.events(node, random, draw, &chosen),
            draw @ 34..56 => self.endpoints(node, random, draw, &chosen),
            63 => self.context(node, random),
            draw => self.services(node, random, draw, &chosen),
        }
    }

    /// The objects of a step.
    fn choose(&mut self, node: &Node, random: &mut Random, now: u64) -> Chosen {
        let ia = some!(self, random, ias, IaHandle);
        let evd = some!(self, random, evds, EvdHandle);
        let ep = some!(self, random, eps, EpHandle);
        let pz = some!(self, random, pzs, PzHandle);
        let cno = some!(self, random, cnos, CnoHandle);
        let srq = some!(self, random, srqs, SrqHandle);
        let state = self.state(node, ep);
        let no_ia = unless(self.model.ias.contains_key(&ia), InvalidHandle);
        // Objects of one IA are made of its own.
        let not_of =
            |of: Option<IaHandle>| of.and_then(|of| unless(of == ia || no_ia.is_some(), InvalidHandle));
        let model = &self.model;
        Chosen {
            now,
            ia,
            evd,
            ep,
            pz,
            cno,
            srq,
            state,
            no_ia,
            no_evd: unless(model.evds.contains_key(&evd), InvalidHandle),
            no_ep: unless(state.is_some(), InvalidHandle),
            no_pz: unless(model.pzs.contains_key(&pz), InvalidHandle),
            no_cno: unless(model.cnos.contains_key(&cno), InvalidHandle),
            no_srq: unless(model.srqs.contains_key(&srq), InvalidHandle),
            foreign_pz: not_of(model.pzs.get(&pz).copied()),
            foreign_evd: not_of(model.evds.get(&evd).map(|evd| evd.ia)),
            foreign_cno: not_of(model.cnos.get(&cno).map(|cno| cno.0)),
            foreign_ep: not_of(model.eps.get(&ep).map(|ep| ep.ia)),
        }
    }

    fn context(&mut self, node: &mut Node, random: &mut Random) {
        let live: Vec<Handle> = self.model.eps.keys().map(|ep| Handle::from(*ep)).collect();
        let live = live.into_iter().chain(self.model.evds.keys().map(|evd| Handle::from(*evd)));
        let live: Vec<Handle> = live.chain(self.model.pzs.keys().map(|pz| Handle::from(*pz))).collect();
        if live.is_empty() {
            return;
        }
        let handle = random.pick(&live);
        let known = self.model.contexts.get(&handle).copied().unwrap_or(0);
        assert_eq!(node.get_consumer_context(handle), Ok(known));
        let context = random.next();
        node.set_consumer_context(handle, context).expect("lives");
        self.model.contexts.insert(handle, context);
        assert_eq!(Some(node.get_handle_type(handle).expect("lives")), handle.kind());
    }

    /// Everything that should live does, as it should; nothing else does.
    fn check(&mut self, node: &Node) {
        for (evd, known) in &self.model.evds {
            let found = node.evd_query(*evd).expect("lives");
            assert_eq!((found.ia, found.evd_flags, found.cno), (known.ia, known.flags, known.cno));
            assert_eq!(found.evd_state.contains(EvdState::WAITABLE), known.waitable);
        }
        for (ep, known) in &self.model.eps {
            let found = node.ep_query(*ep).expect("lives");
            assert_eq!((found.ia, found.pz, found.srq), (known.ia, known.pz, known.srq));
            assert_eq!(
                (found.recv_evd, found.request_evd, found.connect_evd),
                (known.recv, known.request, known.connect)
            );
        }
        for bits in &self.model.dead {
            assert!(node.get_handle_type(Handle::from_bits(*bits)).is_err(), "{bits:x} is dead");
        }
        let census = node.census();
        let found = [census.ias, census.pzs, census.lmrs, census.rmrs, census.evds];
        let model = &self.model;
        let known = [model.ias.len(), model.pzs.len(), model.lmrs.len(), model.rmrs.len(), model.evds.len()];
        assert_eq!(found, known, "IAs, zones, regions, windows, EVDs");
        let found = [census.cnos, census.srqs, census.psps, census.rsps];
        let known = [model.cnos.len(), model.srqs.len(), model.psps.len(), model.rsps.len()];
        assert_eq!(found, known, "CNOs, SRQs, service points");
        // Requests that nobody has seen yet may have brought EPs.
        assert!(census.eps >= model.eps.len() && census.crs >= model.crs.len());
    }
}

/// One seed: calls made and refused, and ends of connections established.
fn run(seed: u64) -> [u64; 3] {
    let mut random = Random::new(seed);
    let mut config = WorldConfig::new(seed);
    config.fabric.faults = "loss=0.3%,dup=1%,reorder=1%,delay=1us..20us".parse().unwrap();
    let mut net = Net::with_memory(&config, 2, NODE_MEMORY);
    let memory: Vec<DmaBuffer> =
        net.nodes.iter_mut().map(|node| node.dma_alloc(1 << 16, 4096).unwrap()).collect();
    let baseline: Vec<_> = (0..2).map(|index| (net.nodes[index].census(), net.world.census(index))).collect();
    let mut callers: Vec<Caller> = memory
        .into_iter()
        .enumerate()
        .map(|(index, memory)| Caller {
            index,
            model: Model::default(),
            memory,
            calls: 0,
            refused: 0,
            established: 0,
        })
        .collect();
    for step in 0..STEPS {
        // Now and then long enough for a connection to be set up.
        let turns = if random.one_in(10) { 80 } else { random.below(4) };
        for _ in 0..turns {
            net.step();
        }
        let index = random.below(2) as usize;
        let now = net.world.now();
        callers[index].step(&mut net.nodes[index], &mut random, now);
        if step % 200 == 0 {
            callers[index].check(&net.nodes[index]);
        }
    }
    for (index, caller) in callers.iter_mut().enumerate() {
        caller.check(&net.nodes[index]);
        let ias: Vec<IaHandle> = caller.model.ias.keys().copied().collect();
        // The newest first: they may use what the older ones have.
        for ia in ias.into_iter().rev() {
            net.nodes[index].ia_close(ia, CloseFlags::Abrupt).expect("always succeeds");
        }
    }
    // TimeWait and what is on its way comes to an end.
    net.pass(20_000_000_000);
    for (index, (before, devices)) in baseline.into_iter().enumerate() {
        assert_eq!(net.nodes[index].census(), before, "nothing is left in node {index}'s tables");
        assert_eq!(net.world.census(index), devices, "nothing is left in node {index}'s HCA");
        assert_eq!(net.nodes[index].counters().bad_completions, 0);
    }
    for index in 0..2 {
        // Keys and lengths that transfers named wrongly are the device's to refuse, and the last step of a connection whose queue
        // pair failed in between (the peer may be gone by then), and the freeing of a region to which a bind that was flushed has
        // bound a window all the same, and a bind whose window is freed before the device comes to it; nothing else is.
        let named = |line: &String| {
            let late = line.starts_with("RTR2RTS_QP: bad QP state") && line.ends_with("is in error (0x6)");
            let bound =
                line.starts_with("DESTROY_MKEY: bad resource state") && line.ends_with("is bound to it");
            let unbound = line.contains("wqe_ctrl_seg.imm: WQE") && line.ends_with("does not exist");
            unbound || line.contains("mkc.") || line.contains("wqe_data_seg.") || late || bound
        };
        let refusals: Vec<String> =
            net.world.refusals(index).into_iter().filter(|line| !named(line)).collect();
        assert_eq!(refusals, Vec::<String>::new(), "node {index}");
    }
    let sum = |of: fn(&Caller) -> u64| callers.iter().map(of).sum();
    [sum(|caller| caller.calls), sum(|caller| caller.refused), sum(|caller| caller.established)]
}

#[test]
fn random_calls_answer_as_the_specification_says() {
    const NAME: &str = concat!(module_path!(), "::random_calls_answer_as_the_specification_says");
    if let Some(seed) = only_seed() {
        println!("seed {seed}: {:?}", with_seed(NAME, seed, || run(seed)));
        return;
    }
    // Another part of the seeds every day would be another test every day: the same ones, in order.
    let seeds = 1000..if long() { 11_000 } else { 1100 };
    let mut tally = [0; 3];
    if long() {
        in_processes(NAME, seeds.clone());
    } else {
        for seed in seeds.clone() {
            let found = with_seed(NAME, seed, || run(seed));
            tally.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
        }
    }
    let [calls, refused, established] = tally;
    println!(
        "{} seeds, {calls} calls, {refused} of them refused, {established} times ESTABLISHED",
        seeds.count()
    );
    assert!(long() || calls > 10_000 && refused > 1_000 && refused < calls && established > 0, "{tally:?}");
}
