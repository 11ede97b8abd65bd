//! The list of all layouts, put together from the list that each `layout!` call makes.

use crate::{Layout, caps, cmd, commands, contexts, datapath, init_seg, registers, steering};

const LISTS: &[&[&Layout]] = &[
    caps::LAYOUTS,
    cmd::LAYOUTS,
    commands::counters::LAYOUTS,
    commands::cq::LAYOUTS,
    commands::dct::LAYOUTS,
    commands::device::LAYOUTS,
    commands::devx::LAYOUTS,
    commands::eq::LAYOUTS,
    commands::flow::LAYOUTS,
    commands::mad::LAYOUTS,
    commands::memic::LAYOUTS,
    commands::mkey::LAYOUTS,
    commands::port::LAYOUTS,
    commands::qp::LAYOUTS,
    commands::raw::LAYOUTS,
    commands::resources::LAYOUTS,
    commands::srq::LAYOUTS,
    contexts::LAYOUTS,
    datapath::completion::LAYOUTS,
    datapath::doorbell::LAYOUTS,
    datapath::event::LAYOUTS,
    datapath::wqe::LAYOUTS,
    init_seg::LAYOUTS,
    registers::LAYOUTS,
    steering::LAYOUTS,
];

const COUNT: usize = {
    let (mut count, mut list) = (0, 0);
    while list < LISTS.len() {
        count += LISTS[list].len();
        list += 1;
    }
    count
};

/// Every layout that Linux 6.1 has too, each once; [`management`](crate::management) has others.
pub static ALL: [&Layout; COUNT] = {
    let mut all = [LISTS[0][0]; COUNT];
    let (mut at, mut list) = (0, 0);
    while list < LISTS.len() {
        let mut index = 0;
        while index < LISTS[list].len() {
            all[at] = LISTS[list][index];
            at += 1;
            index += 1;
        }
        list += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Kind;
    use std::string::String;
    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn nothing_overlaps_and_nothing_lies_outside() {
        let mut wrong: Vec<String> = Vec::new();
        for layout in ALL.iter().chain(crate::management::LAYOUTS) {
            let mut used = vec![false; layout.size * 8];
            layout.visit(&mut |leaf| {
                let range = leaf.bit_offset as usize..(leaf.bit_offset + leaf.bit_width) as usize;
                if matches!(leaf.kind, Kind::Tail(_)) {
                    return;
                }
                match used.get_mut(range) {
                    None => wrong.push(std::format!("{} lies outside", leaf.path)),
                    Some(bits) => {
                        if !leaf.variant && bits.contains(&true) {
                            wrong.push(std::format!("{} overlaps", leaf.path));
                        }
                        bits.fill(true);
                    }
                }
            });
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn embedded_structures_and_arrays_lie_inside() {
        for layout in ALL {
            for entry in layout.entries {
                match entry.kind {
                    Kind::Struct(part, inner) | Kind::Variant(part, inner) => {
                        assert_eq!(part.len, inner.size, "{}.{}", layout.name, entry.name);
                        assert!(part.offset + part.len <= layout.size, "{}.{}", layout.name, entry.name);
                    }
                    Kind::Tail(tail) => {
                        assert!(tail.offset <= layout.size, "{}.{}", layout.name, entry.name);
                    }
                    Kind::Field(_) | Kind::Bytes(_) => {}
                }
            }
        }
    }

    #[test]
    fn variants_may_overlap_only_one_another() {
        for layout in ALL {
            for (index, entry) in layout.entries.iter().enumerate() {
                let Kind::Variant(part, _) = entry.kind else { continue };
                for other in &layout.entries[index + 1..] {
                    let other_part = match other.kind {
                        Kind::Variant(..) => continue,
                        Kind::Field(f) => (f.bit_offset as usize / 8, (f.bit_width as usize).div_ceil(8)),
                        Kind::Bytes(p) | Kind::Struct(p, _) => (p.offset, p.len),
                        Kind::Tail(t) => (t.offset, usize::MAX / 2),
                    };
                    let apart =
                        other_part.0 >= part.offset + part.len || part.offset >= other_part.0 + other_part.1;
                    assert!(apart, "{}: {} and {}", layout.name, entry.name, other.name);
                }
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = ALL.iter().map(|layout| layout.name).collect();
        names.sort_unstable();
        let twice: Vec<String> =
            names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_string()).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
}
