//! How a topic's records are stored: three copies at first, and stripes or objects once they are cold; or, in
//! eight racks of one datacenter, in parts from the first ack on.

use meridian_base::topology::Geometry;
use meridian_consensus::command::FeatureLevel;
use meridian_consensus::state::Metadata;
pub(crate) use meridian_consensus::state::STORAGE_CLASS;
use meridian_consensus::state::STORAGE_CLASS_PARTS;
use meridian_storage::erasure::Code;
use meridian_storage::hot::Layout;

use super::MIN_INSYNC_DATACENTERS;

/// Its default: copies, for ever.
pub(crate) const STORAGE_CLASS_DEFAULT: &str = "mirror-3-dc";
/// Every class there is.
pub(crate) const STORAGE_CLASSES: &[&str] = &[
    STORAGE_CLASS_DEFAULT,
    "mirror-3-dc,cold=rs-5-4",
    "mirror-3-dc,cold=block-4-2",
    "mirror-3-dc,cold=object",
    STORAGE_CLASS_PARTS,
];
/// How old records are when they become cold.
pub(crate) const COLD_AFTER_MS: &str = "meridian.cold.after.ms";
pub(crate) const COLD_AFTER_MS_DEFAULT: i64 = 24 * 3600 * 1000;
/// How many of a partition's newest bytes stay hot whatever their age.
pub(crate) const COLD_AFTER_BYTES: &str = "meridian.cold.after.bytes";

/// The configs that [`check`] looks at.
pub(crate) const CHECKED: [&str; 3] = [STORAGE_CLASS, MIN_INSYNC_DATACENTERS, "cleanup.policy"];

/// Where cold records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColdTier {
    /// On the slots, in stripes.
    Stripes(Code),
    /// In the cluster's object store.
    Objects,
}

impl ColdTier {
    /// From which level on all nodes can read it.
    pub(crate) fn feature_level(self) -> FeatureLevel {
        match self {
            Self::Stripes(_) => FeatureLevel::STRIPES,
            Self::Objects => FeatureLevel::OBJECTS,
        }
    }
}

/// Where a class's cold records are; `None` if it has no such.
pub(crate) fn cold_tier(class: &str) -> Option<ColdTier> {
    match class.strip_prefix(STORAGE_CLASS_DEFAULT)?.strip_prefix(",cold=")? {
        "object" => Some(ColdTier::Objects),
        code => Code::from_name(code).map(ColdTier::Stripes),
    }
}

/// How records of a class are put.
pub(crate) fn layout(class: &str) -> Layout {
    if class == STORAGE_CLASS_PARTS { Layout::PARTS } else { Layout::Copies }
}

/// The shapes of the cluster's groups; before there is one, the shape it will have.
pub(crate) fn geometries(metadata: &Metadata) -> Vec<Geometry> {
    let formed: Vec<Geometry> = metadata.groups().map(|group| group.geometry).collect();
    if formed.is_empty() { metadata.geometry().into_iter().collect() } else { formed }
}

/// Whether a topic may have this storage class beside its other configs, in one of the groups of these
/// shapes; if not, why.
pub(crate) fn check<'a>(
    config: impl Fn(&str) -> Option<&'a str>,
    geometries: &[Geometry],
) -> Result<(), String> {
    let Some(class) = config(STORAGE_CLASS) else { return Ok(()) };
    if class == STORAGE_CLASS_DEFAULT {
        return Ok(());
    }
    let is_in_parts = layout(class) != Layout::Copies;
    let none_fits =
        |fits: &dyn Fn(Geometry) -> bool| !geometries.iter().any(|geometry| fits(*geometry));
    if is_in_parts && none_fits(&|geometry| geometry == Geometry::Block42) {
        return Err(format!(
            "{STORAGE_CLASS}={class} needs a storage group of eight racks in one datacenter; this \
             cluster has none, so leave it at {STORAGE_CLASS_DEFAULT}, or have one made \
             (cluster.further_groups)"
        ));
    }
    let datacenter_count_min = config(MIN_INSYNC_DATACENTERS).and_then(|value| value.parse().ok());
    if is_in_parts && datacenter_count_min.is_some_and(|count: usize| count > 1) {
        return Err(format!(
            "{STORAGE_CLASS}={class} keeps records in one datacenter, so {MIN_INSYNC_DATACENTERS} above \
             1 would refuse every write; set that to 1 for the topic first"
        ));
    }
    if let Some(ColdTier::Stripes(code)) = cold_tier(class)
        && none_fits(&|geometry| code.fits(geometry))
    {
        return Err(format!(
            "{STORAGE_CLASS}={class} needs a storage group of three datacenters with three racks \
             each; this cluster has none, so leave it at {STORAGE_CLASS_DEFAULT}"
        ));
    }
    let policy = config("cleanup.policy").unwrap_or("delete");
    if policy.split(',').any(|policy| policy.trim() == "compact") {
        return Err(format!(
            "{STORAGE_CLASS}={class} is for topics with cleanup.policy=delete; records of compacted \
             topics stay in copies"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_name_their_tier() {
        let tiers: Vec<_> = STORAGE_CLASSES.iter().map(|class| cold_tier(class)).collect();
        let stripes = |code| Some(ColdTier::Stripes(code));
        assert_eq!(
            tiers,
            [None, stripes(Code::Rs54), stripes(Code::Block42), Some(ColdTier::Objects), None]
        );
        let in_parts = STORAGE_CLASSES.iter().filter(|class| layout(class) == Layout::PARTS);
        assert_eq!(in_parts.collect::<Vec<_>>(), [&STORAGE_CLASS_PARTS]);
    }

    #[test]
    fn a_class_must_fit_the_group_and_the_policy() {
        let with = |class: &'static str, policy: &'static str, geometry| {
            let config = move |name: &str| match name {
                STORAGE_CLASS => Some(class),
                "cleanup.policy" => Some(policy),
                _ => None,
            };
            check(config, &[geometry])
        };
        let cold = "mirror-3-dc,cold=rs-5-4";
        assert_eq!(with(cold, "delete", Geometry::Mirror3Dc), Ok(()));
        assert_eq!(with("mirror-3-dc", "compact", Geometry::None), Ok(()));
        assert_eq!(with("mirror-3-dc,cold=object", "delete", Geometry::None), Ok(()));
        assert!(with("mirror-3-dc,cold=object", "compact", Geometry::None).is_err());
        assert!(with(cold, "delete", Geometry::OnePerDc).is_err());
        assert!(with("mirror-3-dc,cold=block-4-2", "delete", Geometry::Block42).is_err());
        assert_eq!(with("mirror-3-dc,cold=object", "delete", Geometry::Block42), Ok(()));
        assert!(with(cold, "compact,delete", Geometry::Mirror3Dc).is_err());
        assert_eq!(with(STORAGE_CLASS_PARTS, "delete", Geometry::Block42), Ok(()));
        assert!(with(STORAGE_CLASS_PARTS, "delete", Geometry::Mirror3Dc).is_err());
        assert!(with(STORAGE_CLASS_PARTS, "compact", Geometry::Block42).is_err());
        assert_eq!(check(|_| None, &[]), Ok(()));
        let wide = |name: &str| match name {
            STORAGE_CLASS => Some(STORAGE_CLASS_PARTS),
            MIN_INSYNC_DATACENTERS => Some("2"),
            _ => None,
        };
        assert!(
            check(wide, &[Geometry::Block42]).is_err_and(|text| text.contains("set that to 1"))
        );
        let both = [Geometry::Mirror3Dc, Geometry::Block42];
        for class in STORAGE_CLASSES {
            let config = |name: &str| (name == STORAGE_CLASS).then_some(*class);
            assert_eq!(check(config, &both), Ok(()), "{class}");
        }
    }
}
