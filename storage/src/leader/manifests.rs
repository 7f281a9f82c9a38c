//! Manifests: when one may be put, and when what it replaces may go.
//!
//! ```text
//! steps   R R R R C C M R K T      R records   C clean   M manifest   K checkpoint   T trim
//!         `-----'  `-' |     |  `- carried a mark at or above K: every takeover will use it
//!         free at T    |     `- holds M
//!                      `- put when C C were committed, and its put carried a mark that says so
//! ```
//! A takeover that sees a manifest in doubt has its mark from whoever holds it, so what it names lies
//! below the cut. One that does not see it needs the records it would have replaced: they stay until
//! no takeover can cut the manifest any more.

use meridian_base::env::Instant;
use meridian_base::position::{LogPoint, Offset, Step};

use super::{Draft, Leader, LeaderOutput, PutError, Replaced};
use crate::blob::BlobKind;
use crate::manifest::Manifest;
use crate::mutation::Mutation;
use crate::placement::SlotHealth;

impl Leader {
    /// Puts a manifest.
    ///
    /// # Panics
    /// If a blob of this generation that it names is not known committed.
    pub fn put_manifest(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        manifest: &Manifest,
        out: &mut Vec<LeaderOutput>,
    ) -> Result<LogPoint, PutError> {
        let committed = self.mark.map(|mark| mark.point);
        let is_safe = |point| Some(point) <= committed;
        let hasty = Mutation::ManifestBeforeRun.active(self.config.mutations);
        assert!(hasty || manifest.clean_points().all(is_safe), "a manifest of blobs in doubt");
        let draft = Draft {
            kind: BlobKind::Manifest,
            base_offset: manifest.end,
            record_count: 0,
            max_timestamp_ms: -1,
            payload: manifest.encode().into(),
        };
        let step = self.put(now, health, draft, out)?;
        let point = LogPoint::new(self.config.generation, step);
        self.note_manifest(point, manifest);
        Ok(point)
    }

    /// Takes the manifest that the state of a takeover holds. What it replaces goes once a checkpoint
    /// of this generation, which will hold it, is safe.
    pub fn adopt_manifest(&mut self, manifest: &Manifest) {
        self.note_manifest(LogPoint::new(self.config.generation, Step::START), manifest);
    }

    fn note_manifest(&mut self, point: LogPoint, manifest: &Manifest) {
        // Of a manifest without blobs of ours, none is needed.
        let clean_from = manifest.clean_points().min().unwrap_or(point);
        let replaced = Replaced { manifest: point, end: manifest.end, clean_from };
        if Mutation::FreeBeforeManifest.active(self.config.mutations) {
            self.replaced = Some(replaced);
            self.trim_lineage();
        } else {
            self.manifests.push_back(replaced);
        }
    }

    /// The newest checkpoint that every takeover will use has changed.
    pub(super) fn on_checkpoint_safe(&mut self) {
        let safe = self.checkpoint.map(|info| info.point);
        while let Some(oldest) = self.manifests.front()
            && Some(oldest.manifest) < safe
        {
            self.replaced = self.manifests.pop_front();
        }
        self.trim_lineage();
    }

    /// Whether every takeover will find the newest manifest: none before it can come into force again,
    /// so what only they name is garbage.
    pub fn is_manifest_safe(&self) -> bool {
        self.manifests.is_empty()
    }

    /// First offset that readers find by the lineage.
    pub(super) fn kept_from(&self) -> Offset {
        let end = self.replaced.map_or(Offset::ZERO, |replaced| replaced.end);
        self.log_start_offset.max(end)
    }

    /// The first clean blob that a reader may need, if the log starts here.
    pub(super) fn clean_from(&self, log_start_offset: Offset) -> LogPoint {
        let Some(replaced) = self.replaced else { return LogPoint::default() };
        let deleted = replaced.end <= log_start_offset;
        if deleted || Mutation::RunInForceFreed.active(self.config.mutations) {
            replaced.manifest
        } else {
            replaced.clean_from
        }
    }
}
