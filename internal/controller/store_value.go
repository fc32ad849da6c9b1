package controller

import (
	"context"
	"encoding/json"
)

// storeValue writes a value to a key of the store. It returns errSuperseded if a later leader wrote the current value,
// errLeaseLost if the lease is about to expire, and store.ErrConflict if the key changed between its read and its write.
// The field token of a value contains the fencing token of its writer.
func storeValue(ctx context.Context, l lease, st kvStore, key string, value any) error {
	if err := leadershipCheck(ctx, l)(); err != nil {
		return err
	}
	old, revision, err := st.Get(ctx, key)
	if err != nil && !isNotFound(err) {
		return err
	}
	return swapStoreValue(ctx, l, st, key, value, old, revision)
}

// swapStoreValue replaces old, the value that a key had at a revision; revision is 0 where it had none. Its errors are
// those of storeValue: store.ErrConflict if the key has another revision now.
func swapStoreValue(ctx context.Context, l lease, st kvStore, key string, value any, old []byte, revision uint64) error {
	if err := leadershipCheck(ctx, l)(); err != nil {
		return err
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if revision == 0 {
		_, err = st.Create(ctx, key, data)
		return err
	}
	var stored struct {
		Token uint64 `json:"token"`
	}
	if json.Unmarshal(old, &stored) == nil && stored.Token > l.Token() {
		return errSuperseded
	}
	_, err = st.CompareAndSwap(ctx, key, data, revision)
	return err
}
