package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"skyserve/internal/controller"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

var _ controller.RecordsConsumer = (*Reconciler)(nil)

// The names of the reconciler's records in the store.
const (
	recordLaunches  = "launches"  // a replicaRecord
	recordDecisions = "decisions" // ReplicaDecisions, of a service whose commands do not change them
	recordSpot      = "spot"      // a provision.SpotRecord
)

// The files of an earlier version with records that are in the store today, beside the controller's bundle
// or the file of decisions.
const (
	fileLaunches  = "launches.json"
	fileDecisions = "leaving.json"
)

// errNoTerm means that the records of a term are missing.
var errNoTerm = fmt.Errorf("this controller is not the leader: %w", controller.ErrBusy)

// UseRecords implements controller.RecordsConsumer.
func (rc *Reconciler) UseRecords(r controller.Records) {
	rc.reconcileMu.Lock()
	defer rc.reconcileMu.Unlock()
	rc.storeRecords, rc.launches, rc.enrolments, rc.admitted, rc.moved = r, nil, nil, nil, movedRecords{}
}

// loadRecords loads the records, once per term. Until that succeeds nothing is changed.
func (rc *Reconciler) loadRecords(ctx context.Context) error {
	switch {
	case rc.launches != nil:
		return nil
	case rc.storeRecords == nil:
		return errNoTerm
	}
	var decided ReplicaDecisions
	dir := rc.Dir
	if rc.DecisionsFile != "" {
		dir = filepath.Dir(rc.DecisionsFile)
	} else if err := rc.loadRecord(ctx, recordDecisions, filepath.Join(dir, fileDecisions), &decided); err != nil {
		return err
	}
	st := &launchState{}
	if err := rc.loadRecord(ctx, recordLaunches, filepath.Join(dir, fileLaunches), &st.record); err != nil {
		return err
	}
	var spot provision.SpotRecord
	if err := rc.loadRecord(ctx, recordSpot, "", &spot); err != nil {
		return err
	}
	st.gate = provision.NewLaunchGate(&st.record.LaunchRecord, rc.now, cloud.RunsOnThisComputer)
	st.gate.Balancers = true
	rc.spot.Restore(spot)
	rc.launches, rc.storedSpot = st, spot
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.storedDecisions = decided
	return nil
}

// loadRecord loads a record into value, a pointer to a zero struct. It imports and removes the file in which
// an earlier version kept the record; file is empty where there was none. A record that cannot be decoded
// is logged and replaced: it must not stop replacements.
func (rc *Reconciler) loadRecord(ctx context.Context, name, file string, value any) error {
	found, err := rc.storeRecords.Load(ctx, name, value)
	if errors.Is(err, controller.ErrDamagedRecord) {
		rc.log().Warn("a record in the store is damaged; it starts empty", "record", name, "err", err)
		reflect.ValueOf(value).Elem().SetZero()
		return nil
	}
	if err != nil || file == "" {
		return err
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !found {
		if failed := json.Unmarshal(text, value); failed != nil {
			rc.log().Warn("a file of an earlier version is damaged; its record starts empty", "file", file, "err", failed)
			reflect.ValueOf(value).Elem().SetZero()
		}
		err = rc.storeRecords.Store(ctx, name, value)
	}
	if err == nil {
		err = os.Remove(file)
	}
	if err != nil {
		return fmt.Errorf("importing %s into the store: %w", file, err)
	}
	return nil
}

// storeSpot stores the history of spot machines if it has changed.
func (rc *Reconciler) storeSpot(ctx context.Context) error {
	next := rc.spot.Record()
	if reflect.DeepEqual(next, rc.storedSpot) || next.Empty() && rc.storedSpot.Empty() {
		return nil
	}
	err := rc.storeRecords.Store(ctx, recordSpot, next)
	if err == nil {
		rc.storedSpot = next
	}
	return err
}

// decisions returns the decisions about replicas.
func (rc *Reconciler) decisions() (ReplicaDecisions, error) {
	if rc.DecisionsFile != "" {
		return ReadReplicaDecisions(rc.DecisionsFile)
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return rc.storedDecisions, nil
}

// writeDecisions stores the decisions about replicas.
func (rc *Reconciler) writeDecisions(ctx context.Context, next ReplicaDecisions) error {
	if rc.DecisionsFile != "" {
		return next.Write(rc.DecisionsFile)
	}
	if err := rc.storeRecords.Store(ctx, recordDecisions, next); err != nil {
		return err
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.storedDecisions = next
	return nil
}
