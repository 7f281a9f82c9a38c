//! The network between nodes and clients: it delays, drops, duplicates, reorders and cuts.
//!
//! Messages of a node to itself stay in the process: a short delay, never lost.

use std::time::Duration;

use meridian_jepsen_runner::chance::Chance;

/// A node or a client. Nodes come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint(pub usize);

/// How badly the network behaves between endpoints that are not cut off from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Messages lost, per thousand.
    pub drop_per_mille: u32,
    /// Messages that arrive twice, per thousand.
    pub duplicate_per_mille: u32,
    /// Messages held up, per thousand.
    pub late_per_mille: u32,
    /// For how long at most.
    pub late_max: Duration,
}

impl Weather {
    /// Nothing is lost and little is late.
    pub const CALM: Self = Self {
        drop_per_mille: 0,
        duplicate_per_mille: 0,
        late_per_mille: 5,
        late_max: Duration::from_millis(20),
    };
}

/// The network.
#[derive(Debug)]
pub struct Network {
    chance: Chance,
    weather: Weather,
    datacenter_of: Vec<usize>,
    /// `cut[from][to]`: nothing gets through that way.
    cut: Vec<Vec<bool>>,
}

/// When the copies of one message arrive: none if it is lost, two if it is duplicated.
pub type Arrivals = [Option<Duration>; 2];

impl Network {
    /// A calm network; `datacenter_of` names each endpoint's datacenter.
    pub fn new(chance: Chance, datacenter_of: Vec<usize>) -> Self {
        let count = datacenter_of.len();
        let cut = vec![vec![false; count]; count];
        Self { chance, weather: Weather::CALM, datacenter_of, cut }
    }

    /// Sends one message.
    pub fn send(&mut self, from: Endpoint, to: Endpoint) -> Arrivals {
        if from == to {
            return [Some(Duration::from_micros(5)), None];
        }
        if self.is_cut(from, to) || self.chance.per_mille(self.weather.drop_per_mille) {
            return [None, None];
        }
        let twice = self.chance.per_mille(self.weather.duplicate_per_mille);
        [Some(self.delay(from, to)), twice.then(|| self.delay(from, to))]
    }

    fn delay(&mut self, from: Endpoint, to: Endpoint) -> Duration {
        let near = self.datacenter_of[from.0] == self.datacenter_of[to.0];
        let base = Duration::from_micros(if near { 150 } else { 2_000 });
        let jitter = self.chance.around(base / 4);
        let late = if self.chance.per_mille(self.weather.late_per_mille) {
            self.chance.between(Duration::ZERO, self.weather.late_max)
        } else {
            Duration::ZERO
        };
        base + jitter + late
    }

    /// Sets how badly the network behaves.
    pub fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }

    /// Cuts one direction.
    pub fn cut_one_way(&mut self, from: Endpoint, to: Endpoint) {
        self.cut[from.0][to.0] = from != to;
    }

    /// Ends the cut of one direction.
    pub fn mend_one_way(&mut self, from: Endpoint, to: Endpoint) {
        self.cut[from.0][to.0] = false;
    }

    /// Cuts both directions between every member of `side` and everyone else.
    pub fn isolate(&mut self, side: &[Endpoint]) {
        for from in 0..self.cut.len() {
            for to in 0..self.cut.len() {
                if side.contains(&Endpoint(from)) != side.contains(&Endpoint(to)) {
                    self.cut[from][to] = true;
                }
            }
        }
    }

    /// Every endpoint in `datacenter`.
    pub fn endpoints_of(&self, datacenter: usize) -> Vec<Endpoint> {
        let inside = |endpoint: &Endpoint| self.datacenter_of[endpoint.0] == datacenter;
        (0..self.datacenter_of.len()).map(Endpoint).filter(inside).collect()
    }

    /// Whether nothing gets from `from` to `to`.
    pub fn is_cut(&self, from: Endpoint, to: Endpoint) -> bool {
        self.cut[from.0][to.0]
    }

    /// Ends every cut.
    pub fn heal(&mut self) {
        self.cut.iter_mut().for_each(|row| row.fill(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        Network::new(Chance::new(3), vec![0, 0, 1, 1])
    }

    #[test]
    fn a_cut_is_one_way_until_healed() {
        let mut network = network();
        let (a, b) = (Endpoint(0), Endpoint(2));
        network.cut_one_way(a, b);
        assert_eq!(network.send(a, b), [None, None]);
        assert!(network.send(b, a)[0].is_some());
        network.heal();
        assert!(network.send(a, b)[0].is_some());
    }

    #[test]
    fn an_isolated_side_still_talks_among_itself() {
        let mut network = network();
        let side = network.endpoints_of(0);
        network.isolate(&side);
        assert!(network.is_cut(Endpoint(0), Endpoint(2)));
        assert!(network.is_cut(Endpoint(3), Endpoint(1)));
        assert!(!network.is_cut(Endpoint(0), Endpoint(1)));
        assert!(!network.is_cut(Endpoint(2), Endpoint(3)));
    }

    #[test]
    fn weather_drops_and_duplicates() {
        let mut network = network();
        let storm = Weather { drop_per_mille: 300, duplicate_per_mille: 300, ..Weather::CALM };
        network.set_weather(storm);
        let sent: Vec<Arrivals> =
            (0..1000).map(|_| network.send(Endpoint(0), Endpoint(3))).collect();
        let lost = sent.iter().filter(|arrivals| arrivals[0].is_none()).count();
        let doubled = sent.iter().filter(|arrivals| arrivals[1].is_some()).count();
        assert!((200..400).contains(&lost) && (120..320).contains(&doubled));
    }

    #[test]
    fn a_node_always_reaches_itself() {
        let mut network = network();
        network.isolate(&[Endpoint(1)]);
        network.cut_one_way(Endpoint(1), Endpoint(1));
        assert!(network.send(Endpoint(1), Endpoint(1))[0].is_some());
    }
}
