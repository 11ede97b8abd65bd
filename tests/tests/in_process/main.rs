//! The full stack on the model, in one process: every run is a function of its seed.

mod apps;
mod boot_image;
mod bring_up;
mod cards;
mod cm;
mod dat;
mod demo;
mod flood;
mod front_page;
mod hca;
mod ip;
mod programs;
mod rds;
mod selftest;
mod unsafe_list;
mod verbs;
mod workload;
