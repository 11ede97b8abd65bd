//! Tarjan's algorithm.

/// State of a node in the search.
#[derive(Clone, Copy)]
struct Visit {
    /// Order in which the node was reached.
    index: usize,
    on_stack: bool,
}

struct Search<'a> {
    edges: &'a [Vec<usize>],
    visits: Vec<Option<Visit>>,
    stack: Vec<usize>,
    reached: usize,
    found: Vec<Vec<usize>>,
}

/// Returns the strongly connected components of a graph. Node `n` has edges to the nodes
/// `edges[n]`; each node is in exactly one component.
pub fn strongly_connected(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut search =
        Search { edges, visits: vec![None; edges.len()], stack: Vec::new(), reached: 0, found: Vec::new() };
    for node in 0..edges.len() {
        if search.visits[node].is_none() {
            search.visit(node);
        }
    }
    search.found
}

impl Search<'_> {
    /// Visits `node` and all its successors. Returns the earliest node on the stack that it
    /// reaches.
    fn visit(&mut self, node: usize) -> usize {
        let index = self.reached;
        self.reached += 1;
        self.stack.push(node);
        self.visits[node] = Some(Visit { index, on_stack: true });
        let mut low = index;
        for &next in &self.edges[node] {
            match self.visits[next] {
                None => low = low.min(self.visit(next)),
                Some(visit) if visit.on_stack => low = low.min(visit.index),
                Some(_) => {}
            }
        }
        if low == index {
            let start = self.stack.iter().rposition(|other| *other == node).unwrap_or(0);
            let component = self.stack.split_off(start);
            for &member in &component {
                if let Some(visit) = &mut self.visits[member] {
                    visit.on_stack = false;
                }
            }
            self.found.push(component);
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::strongly_connected;

    fn sorted(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let mut components = strongly_connected(edges);
        components.iter_mut().for_each(|component| component.sort_unstable());
        components.sort();
        components
    }

    #[test]
    fn components_are_found() {
        assert_eq!(sorted(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(sorted(&[vec![1], vec![2], vec![]]), [[0], [1], [2]]);
        assert_eq!(sorted(&[vec![1], vec![2], vec![0]]), [[0, 1, 2]]);
        // Two cycles, joined in one direction; a chord; a separate node with an edge into one of
        // the cycles.
        let edges = [vec![1, 2], vec![2, 3], vec![0], vec![4], vec![3], vec![1]];
        assert_eq!(sorted(&edges), [vec![0, 1, 2], vec![3, 4], vec![5]]);
    }

    #[test]
    fn components_are_those_of_mutual_reachability() {
        // All graphs of four nodes.
        let pairs: Vec<(usize, usize)> =
            (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
        for bits in 0..1_u32 << pairs.len() {
            let mut edges = vec![Vec::new(); 4];
            // Bit b of entry a: b is reachable from a.
            let mut reach = [0_u8; 4];
            for (_, &(a, b)) in pairs.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1) {
                edges[a].push(b);
                reach[a] |= 1 << b;
            }
            for middle in 0..4 {
                let further = reach[middle];
                for from in &mut reach {
                    *from |= if *from >> middle & 1 == 1 { further } else { 0 };
                }
            }
            let components = strongly_connected(&edges);
            let of = |node: usize| components.iter().position(|component| component.contains(&node));
            for &(a, b) in &pairs {
                let mutual = reach[a] >> b & reach[b] >> a & 1 == 1;
                assert_eq!(of(a) == of(b), mutual, "{edges:?} {a} {b}");
            }
        }
    }
}
