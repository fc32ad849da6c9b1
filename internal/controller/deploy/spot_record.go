package deploy

import (
	"skyserve/internal/controller"
	"skyserve/provision"
)

var _ controller.SpotRecorder = (*Reconciler)(nil)

// SpotRecord implements controller.SpotRecorder.
func (k *Reconciler) SpotRecord() provision.SpotRecord {
	k.working.Lock()
	defer k.working.Unlock()
	return k.spot.Record()
}

// RestoreSpotRecord implements controller.SpotRecorder.
func (k *Reconciler) RestoreSpotRecord(r provision.SpotRecord) {
	k.working.Lock()
	defer k.working.Unlock()
	k.spot.Restore(r)
}
