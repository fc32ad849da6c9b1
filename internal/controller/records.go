package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"skyserve/internal/store"
)

// Records are the records of a service's machines in the store during one term of leadership: the state that the next
// leader needs, whichever machine it runs on. A record is a JSON object with a name.
type Records interface {
	// Load decodes a record into value, a pointer to a struct; found is false where there is none. After
	// Load no earlier leader can change the record. It returns ErrDamagedRecord for a record that cannot be
	// decoded.
	Load(ctx context.Context, name string, value any) (found bool, err error)
	// Read decodes a record that balancers write into value, a pointer to a struct, which it leaves unchanged where there is
	// none. It returns ErrDamagedRecord for a record that cannot be decoded.
	Read(ctx context.Context, name string, value any) error
	// Store replaces a record with value, a struct, unless a later leader has loaded or stored it.
	Store(ctx context.Context, name string, value any) error
}

// RecordsConsumer is an optional interface of a MachineReconciler that stores Records.
type RecordsConsumer interface {
	// UseRecords starts a term of leadership. Records of an earlier term are outdated: the next Reconcile
	// loads them again.
	UseRecords(Records)
}

// ErrDamagedRecord means that a record in the store cannot be decoded.
var ErrDamagedRecord = errors.New("the record cannot be decoded")

// claimTries is the number of attempts to claim a record while an earlier leader writes it.
const claimTries = 3

// termRecords implements Records for the holder of a lease.
type termRecords struct {
	service string
	lease   lease
	kv      kvStore
}

// Load implements Records.
func (r termRecords) Load(ctx context.Context, name string, value any) (found bool, err error) {
	for range claimTries {
		if found, err = r.claim(ctx, name, value); !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("reading %s from the store: %w", r.key(name), err)
	}
	return found, err
}

// Read implements Records.
func (r termRecords) Read(ctx context.Context, name string, value any) error {
	data, _, err := r.kv.Get(ctx, r.key(name))
	switch {
	case isNotFound(err):
		return nil
	case err == nil && json.Unmarshal(data, value) != nil:
		err = ErrDamagedRecord
	}
	if err != nil {
		err = fmt.Errorf("reading %s from the store: %w", r.key(name), err)
	}
	return err
}

// claim reads a record and writes it again with this leader's token, so that no earlier leader can change it.
func (r termRecords) claim(ctx context.Context, name string, value any) (found bool, err error) {
	data, revision, err := r.kv.Get(ctx, r.key(name))
	fields := map[string]json.RawMessage{}
	switch {
	case isNotFound(err):
	case err != nil:
		return false, err
	case json.Unmarshal(data, &fields) != nil || json.Unmarshal(data, value) != nil:
		return false, ErrDamagedRecord
	}
	next, err := withToken(fields, r.lease.Token())
	if err == nil {
		err = swapStoreValue(ctx, r.lease, r.kv, r.key(name), next, data, revision)
	}
	delete(fields, tokenField)
	return len(fields) > 0, err
}

// Store implements Records.
func (r termRecords) Store(ctx context.Context, name string, value any) error {
	text, err := json.Marshal(value)
	fields := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err == nil {
		fields, err = withToken(fields, r.lease.Token())
	}
	if err == nil {
		err = storeValue(ctx, r.lease, r.kv, r.key(name), fields)
	}
	if err != nil {
		return fmt.Errorf("writing %s to the store: %w", r.key(name), err)
	}
	return nil
}

// key returns the store key of a record; it contains the service's name, because several services can share
// a store.
func (r termRecords) key(name string) string { return name + "." + r.service }

// tokenField is the name of the field of a stored value that contains the fencing token of its writer.
const tokenField = "token"

// withToken adds a fencing token to the fields of a value, and returns them.
func withToken(fields map[string]json.RawMessage, token uint64) (map[string]json.RawMessage, error) {
	text, err := json.Marshal(token)
	fields[tokenField] = text
	return fields, err
}
