package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"skyserve/internal/store"
)

// Assignment is the published decision: what the store keeps.
type Assignment struct {
	// Owners is the balancer of each replica, by id.
	Owners map[string]string `json:"owners"`
	// Token is the fencing token of the controller that decided.
	Token uint64 `json:"token"`
	// Base is added to the revision to make the epoch. It is 0 unless the store
	// was lost while balancers went on with the epochs of the old one.
	Base uint64 `json:"base,omitempty"`

	revision uint64
}

// Epoch numbers the assignment: greater than that of every one before it.
func (a Assignment) Epoch() uint64 { return a.Base + a.revision }

// same tells whether two assignments mean the same, whoever decided them.
func (a Assignment) same(b Assignment) bool {
	return a.Base == b.Base && maps.Equal(a.Owners, b.Owners)
}

// next is the assignment that should follow a: the owners as decided, with a
// base by which it is newer than anything that a balancer holds.
func (a Assignment) next(owners map[string]string, token, newestSeen uint64) Assignment {
	n := Assignment{Owners: owners, Token: token, Base: a.Base, revision: a.revision}
	if newestSeen > a.Epoch() {
		n.Base = newestSeen
	}
	return n
}

// decodeAssignment reads what the store keeps.
func decodeAssignment(data []byte, revision uint64) (Assignment, error) {
	var a Assignment
	if err := json.Unmarshal(data, &a); err != nil {
		return Assignment{revision: revision}, fmt.Errorf("reading the assignment at revision %d: %w", revision, err)
	}
	a.revision = revision
	return a, nil
}

// isGone tells whether the store says that nothing was published yet.
func isGone(err error) bool { return errors.Is(err, store.ErrNotFound) }
