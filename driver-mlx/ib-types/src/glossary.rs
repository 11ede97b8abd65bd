//! Words of the field, as the code and comments of all crates use them.
//!
//! # Hardware
//!
//! | word | meaning |
//! |---|---|
//! | BAR0 | registers of the device in PCI memory space |
//! | BlueFlame | a WQE written into a UAR page, which saves the device a fetch |
//! | CQ, CQE | completion queue; its 64-byte entry: QP, WQE and status |
//! | doorbell | register write that announces new WQEs |
//! | doorbell record | counter in memory that the device reads with the doorbell |
//! | EQ, EQE | event queue and its entry: completions of armed CQs, page requests, port changes, failures |
//! | firmware page | 4 KiB of host memory lent to firmware by MANAGE_PAGES |
//! | inline | data copied into the WQE when it is posted |
//! | memory key (mkey), lkey, rkey | 32-bit name of registered memory, for local WQEs and for peers |
//! | MTT | list of pages behind a memory key |
//! | octoword | 16 bytes, the unit of a WQE's length ("ds") |
//! | syndrome, vendor syndrome | reason code of a failed command or CQE |
//! | UAR page | 4 KiB of registers with the doorbells of queues |
//! | UMR | WQE that changes a memory key: bind of a window, invalidation, registration |
//! | WQE, WQEBB | work queue entry; the 64-byte basic blocks of a send queue |
//!
//! # InfiniBand
//!
//! | word | meaning |
//! |---|---|
//! | CM | connection manager (IBTA volume 1, chapter 12) |
//! | GID, LID | address of a port, worldwide and in its subnet |
//! | MAD | management datagram (chapter 13) |
//! | P_Key, Q_Key | key of a partition; key of a datagram QP |
//! | PSN | packet sequence number |
//! | RNR | receiver not ready: no receive is posted, the requester retries |
//! | SA, SM | subnet administrator and subnet manager (chapters 14, 15) |
//! | SGE | scatter/gather element: address, length, lkey |
//! | solicited | receive whose sender requested an event |
//!
//! # DAT
//!
//! | word | meaning |
//! |---|---|
//! | CNO | consumer notification object |
//! | CR | connection request |
//! | DTO | data transfer operation: send, receive, RDMA read, RDMA write |
//! | EP | endpoint |
//! | EVD | event dispatcher |
//! | IA | interface adapter |
//! | LMR, RMR | local and remote memory region |
//! | PSP, RSP | public and reserved service point |
//! | PZ | protection zone |
//! | SRQ | shared receive queue |
//! | SUPPRESS | success is not reported |
//! | UNSIGNALLED | success is reported without notification |
//!
//! # This project
//!
//! | word | meaning |
//! |---|---|
//! | DMA buffer | memory of the adapter's DMA region; safe code can register no other |
//! | fast path | the common case of a layer; the other cases are in functions of their own |
//! | fence | a WQE that waits for earlier RDMA reads; small fence: for changes of memory keys |
//! | flush | completion with an error of all WQEs of a QP in the error state |
//! | outstanding | posted and not yet retired |
//! | post, ring, poll, retire | write a WQE; announce WQEs to the device; read a CQE; free its WQEs |
//! | reported | contained in a CQE or an event |
//! | wr_id | 64 bits of a work request, returned with its completion; DAT: cookie |
