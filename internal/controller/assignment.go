package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"skyserve/internal/store"
)

// Assignment is the published assignment of replicas, as stored.
type Assignment struct {
	// Owners maps each replica ID to its balancer.
	Owners map[string]string `json:"owners"`
	// Token is the fencing token of the controller that made the assignment.
	Token uint64 `json:"token"`
	// Base plus the revision is the epoch. Base is 0 until a balancer has a newer epoch, for example because the store
	// was lost or an older backup was restored.
	Base uint64 `json:"base,omitempty"`

	revision uint64 // of the stored key; 0 = not stored
}

// Epoch returns the number of the assignment, greater than that of every earlier one.
func (a Assignment) Epoch() uint64 { return a.Base + a.revision }

// equal reports whether two assignments are equal, whichever controllers made them.
func (a Assignment) equal(b Assignment) bool {
	return a.Base == b.Base && maps.Equal(a.Owners, b.Owners)
}

// next returns the assignment that follows a, with a base that makes its epoch newer than any epoch
// at a balancer.
func (a Assignment) next(owners map[string]string, token, newestSeen uint64) Assignment {
	n := Assignment{Owners: owners, Token: token, Base: a.Base, revision: a.revision}
	if newestSeen > a.Epoch() {
		n.Base = newestSeen
	}
	return n
}

// decodeAssignment decodes a stored assignment.
func decodeAssignment(data []byte, revision uint64) (Assignment, error) {
	var a Assignment
	if err := json.Unmarshal(data, &a); err != nil {
		return Assignment{revision: revision}, fmt.Errorf("decoding the assignment at revision %d: %w", revision, err)
	}
	a.revision = revision
	return a, nil
}

// isNotFound reports whether err means that a key of the store has no value.
func isNotFound(err error) bool { return errors.Is(err, store.ErrNotFound) }
