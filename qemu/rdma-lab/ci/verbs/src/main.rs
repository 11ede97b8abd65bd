//! `verbs-echo`: answers messages over a reliable connection. `verbs-echo SERVER [COUNT]`: sends messages there, and compares what comes back.

mod ibv;

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PORT: u16 = 7471;
/// Bytes of a message, and of each of the two halves of the memory: what is sent, what is received.
const SIZE: usize = 4096;
/// The longest wait for a completion.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        None => serve(),
        Some(server) => {
            let count = arguments.next().map_or(Ok(1000), |count| count.parse())?;
            ask(&server, count)
        }
    }
}

fn serve() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    let (mut stream, _) = listener.accept()?;
    let mut end = End::open()?;
    end.receive()?;
    let count = end.connect(&mut stream, 0)?;
    for _ in 0..count {
        end.wait_for(RECEIVED)?;
        let (sent, received) = end.memory.split_at_mut(SIZE);
        sent.copy_from_slice(received);
        end.receive()?;
        end.send()?;
        end.wait_for(SENT)?;
    }
    // The client has all answers when it closes.
    let _ = stream.read(&mut [0])?;
    println!("{count} messages answered");
    end.close()
}

fn ask(server: &str, count: u32) -> Result<()> {
    let mut stream = TcpStream::connect((server, PORT))?;
    let mut end = End::open()?;
    end.receive()?;
    end.connect(&mut stream, count)?;
    for number in 0..count {
        let (sent, received) = end.memory.split_at_mut(SIZE);
        received.fill(0);
        sent.iter_mut().zip(0u32..).for_each(|(byte, at)| *byte = (number * 31 + at * 7) as u8);
        end.send()?;
        end.wait_for(SENT)?;
        end.wait_for(RECEIVED)?;
        let (sent, received) = end.memory.split_at(SIZE);
        if sent != received {
            return Err(format!("message {number} came back changed").into());
        }
        end.receive()?;
    }
    println!("{count} messages of {SIZE} bytes sent, answered and compared");
    end.close()
}

/// `ibv_wc.opcode` of what is waited for.
const SENT: i32 = 0;
const RECEIVED: i32 = 128;

/// One end of the connection.
struct End {
    memory: Vec<u8>,
    context: *mut ibv::Context,
    pd: *mut c_void,
    mr: *mut ibv::Mr,
    cq: *mut ibv::Cq,
    qp: *mut ibv::Qp,
    /// Completions that came before they were waited for, by their opcode.
    early: Vec<i32>,
}

/// A pointer that libibverbs answered.
fn there<T>(pointer: *mut T, what: &str) -> Result<*mut T> {
    if pointer.is_null() { Err(format!("{what}: {}", std::io::Error::last_os_error()).into()) } else { Ok(pointer) }
}

/// A status that libibverbs answered.
fn good(status: i32, what: &str) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(format!("{what}: {}", std::io::Error::from_raw_os_error(status)).into()) }
}

impl End {
    /// Everything of the first device, up to a queue pair.
    fn open() -> Result<Self> {
        let mut memory = vec![0; 2 * SIZE];
        // SAFETY: libibverbs is called as its manual pages say; what it answers is checked, and lives until `close`. The memory is a
        // vector's, which neither moves nor grows.
        unsafe {
            let devices = there(ibv::ibv_get_device_list(null_mut()), "ibv_get_device_list")?;
            let device = there(*devices, "no RDMA device")?;
            println!("device {}", CStr::from_ptr(ibv::ibv_get_device_name(device)).to_string_lossy());
            let context = there(ibv::ibv_open_device(device), "ibv_open_device")?;
            let pd = there(ibv::ibv_alloc_pd(context), "ibv_alloc_pd")?;
            const LOCAL_WRITE: i32 = 1;
            let mr = ibv::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), LOCAL_WRITE);
            let mr = there(mr, "ibv_reg_mr")?;
            let cq = there(ibv::ibv_create_cq(context, 16, null_mut(), null_mut(), 0), "ibv_create_cq")?;
            const RC: i32 = 2;
            let cap = ibv::Capacity { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let mut init = ibv::QpInit {
                qp_context: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: null_mut(),
                cap,
                qp_type: RC,
                sq_sig_all: 0,
            };
            let qp = there(ibv::ibv_create_qp(pd, &mut init), "ibv_create_qp")?;
            let mut end = Self { memory, context, pd, mr, cq, qp, early: Vec::new() };
            // From INIT on receives can be posted.
            let mut attr = ibv::QpAttr { qp_state: 1, port_num: 1, ..ibv::QpAttr::default() };
            end.modify(&mut attr, 1 | 1 << 3 | 1 << 4 | 1 << 5, "INIT")?;
            Ok(end)
        }
    }

    /// Tells the peer LID, QPN and `count`, and brings the queue pair up with what it tells; answers its count.
    fn connect(&mut self, stream: &mut TcpStream, count: u32) -> Result<u32> {
        let mut port = ibv::PortAttr::default();
        // SAFETY: as in `open`.
        let (status, qpn) = unsafe { (ibv::ibv_query_port(self.context, 1, &mut port), (*self.qp).qp_num) };
        good(status, "ibv_query_port")?;
        let words = [u32::from(port.lid), qpn, count];
        stream.write_all(&words.map(u32::to_be_bytes).concat())?;
        let mut answer = [[0; 4]; 3];
        for word in &mut answer {
            stream.read_exact(word)?;
        }
        let [lid, qpn, count] = answer.map(u32::from_be_bytes);
        let path = ibv::Path { dlid: lid as u16, port_num: 1, ..ibv::Path::default() };
        let mut attr = ibv::QpAttr {
            qp_state: 2,
            path_mtu: 5,
            dest_qp_num: qpn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: path,
            ..ibv::QpAttr::default()
        };
        self.modify(&mut attr, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20, "RTR")?;
        let mut attr = ibv::QpAttr {
            qp_state: 3,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..ibv::QpAttr::default()
        };
        self.modify(&mut attr, 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16, "RTS")?;
        // Neither sends before both are ready.
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        Ok(count)
    }

    fn modify(&mut self, attr: &mut ibv::QpAttr, mask: i32, state: &str) -> Result<()> {
        // SAFETY: as in `open`.
        good(unsafe { ibv::ibv_modify_qp(self.qp, attr, mask) }, &format!("ibv_modify_qp to {state}"))
    }

    /// The half of the memory that begins at `offset`.
    fn half(&mut self, offset: usize) -> ibv::Sge {
        // SAFETY: as in `open`.
        let lkey = unsafe { (*self.mr).lkey };
        ibv::Sge { addr: self.memory[offset..].as_mut_ptr() as u64, length: SIZE as u32, lkey }
    }

    fn send(&mut self) -> Result<()> {
        let mut sge = self.half(0);
        let mut request = ibv::SendWr::send(&mut sge);
        // SAFETY: as in `open`; request and list are read before the call ends, the memory is ours until the completion.
        good(unsafe { ((*self.context).post_send)(self.qp, &mut request, &mut null_mut()) }, "ibv_post_send")
    }

    fn receive(&mut self) -> Result<()> {
        let mut sge = self.half(SIZE);
        let mut request = ibv::RecvWr { wr_id: 2, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        // SAFETY: as in `send`.
        good(unsafe { ((*self.context).post_recv)(self.qp, &mut request, &mut null_mut()) }, "ibv_post_recv")
    }

    /// Waits for a completion of that opcode.
    fn wait_for(&mut self, opcode: i32) -> Result<()> {
        let began = Instant::now();
        loop {
            if let Some(at) = self.early.iter().position(|early| *early == opcode) {
                self.early.remove(at);
                return Ok(());
            }
            let mut wc = ibv::Wc::default();
            // SAFETY: as in `open`; there is room for one completion.
            match unsafe { ((*self.context).poll_cq)(self.cq, 1, &mut wc) } {
                0 if began.elapsed() > LIMIT => return Err("no completion".into()),
                0 => std::thread::yield_now(),
                1 if wc.status == 0 => self.early.push(wc.opcode),
                1 => return Err(format!("completion with status {} (vendor {:#x})", wc.status, wc.vendor_err).into()),
                _ => return Err("ibv_poll_cq".into()),
            }
        }
    }

    fn close(self) -> Result<()> {
        // SAFETY: as in `open`; nothing is used afterwards.
        unsafe {
            good(ibv::ibv_destroy_qp(self.qp), "ibv_destroy_qp")?;
            good(ibv::ibv_destroy_cq(self.cq), "ibv_destroy_cq")?;
            good(ibv::ibv_dereg_mr(self.mr), "ibv_dereg_mr")?;
            good(ibv::ibv_dealloc_pd(self.pd), "ibv_dealloc_pd")?;
            good(ibv::ibv_close_device(self.context), "ibv_close_device")
        }
    }
}
