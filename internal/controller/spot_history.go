package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"

	"skyserve/provision"
)

// SpotRecorder is an optional interface of Machines with a history of spot machines, which the store keeps for
// later controllers.
type SpotRecorder interface {
	// SpotRecord returns the history.
	SpotRecord() provision.SpotRecord
	// RestoreSpotRecord adds the history of an earlier controller.
	RestoreSpotRecord(provision.SpotRecord)
}

// spotHistory keeps the history of spot machines in the store. It is nil where there is none.
type spotHistory struct {
	service  string
	state    state
	machines SpotRecorder
	log      *slog.Logger
	logged   errorOnce

	loaded bool
	stored provision.SpotRecord
}

// storedSpotRecord is the value of the store.
type storedSpotRecord struct {
	Token uint64 `json:"token"`
	provision.SpotRecord
}

// newSpotHistory returns the history of a service's machines; nil where they have none.
func newSpotHistory(service string, st state, machines Machines, log *slog.Logger) *spotHistory {
	recorder, ok := machines.(SpotRecorder)
	if !ok {
		return nil
	}
	return &spotHistory{service: service, state: st, machines: recorder, log: log}
}

// spotKey returns the store key of the history.
func spotKey(service string) string { return "spot." + service }

// startTerm makes the next load read what other controllers have stored.
func (h *spotHistory) startTerm() {
	if h != nil {
		h.loaded = false
	}
}

// load restores the stored history, once per term. Until that succeeds, nothing is stored.
func (h *spotHistory) load(ctx context.Context) {
	if h == nil || h.loaded {
		return
	}
	data, _, err := h.state.Get(ctx, spotKey(h.service))
	var held storedSpotRecord
	switch {
	case isNotFound(err):
		err = nil
	case err == nil:
		if failed := json.Unmarshal(data, &held); failed != nil { // advisory: it is replaced
			h.log.Warn("the stored history of spot machines is unreadable and is replaced", "err", failed)
			held = storedSpotRecord{}
		}
	}
	if err != nil {
		h.logError(fmt.Errorf("reading it: %w", err))
		return
	}
	h.machines.RestoreSpotRecord(held.SpotRecord)
	h.loaded, h.stored = true, held.SpotRecord
}

// store stores the history if it has changed. A failure is logged, and the next iteration stores it.
func (h *spotHistory) store(ctx context.Context, l lease) {
	if h == nil || !h.loaded {
		return
	}
	next := h.machines.SpotRecord()
	if reflect.DeepEqual(next, h.stored) || next.Empty() && h.stored.Empty() {
		return
	}
	err := storeValue(ctx, l, h.state, spotKey(h.service), storedSpotRecord{l.Token(), next})
	if err == nil {
		h.stored = next
	}
	h.logError(err)
}

func (h *spotHistory) logError(err error) {
	if h.logged.changed(err) {
		h.log.Warn("storing the history of spot machines failed; retrying", "err", err)
	}
}
