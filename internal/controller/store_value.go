package controller

import (
	"context"
	"encoding/json"
)

// storeValue writes a value to a key of the store, from which balancers read it, unless a newer
// controller wrote the current value. A stored value contains its fencing token as token.
func storeValue(ctx context.Context, l lease, st state, key string, value any) error {
	if err := mayAct(ctx, l)(); err != nil {
		return err
	}
	old, revision, err := st.Get(ctx, key)
	if err != nil && !isNotFound(err) {
		return err
	}
	return swapStoreValue(ctx, l, st, key, value, old, revision)
}

// swapStoreValue replaces the value that a key had at a revision; revision is 0 where it had none.
func swapStoreValue(ctx context.Context, l lease, st state, key string, value any, old []byte, revision uint64) error {
	if err := mayAct(ctx, l)(); err != nil {
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
	var held struct {
		Token uint64 `json:"token"`
	}
	if json.Unmarshal(old, &held) == nil && held.Token > l.Token() {
		return errSuperseded
	}
	_, err = st.CompareAndSwap(ctx, key, data, revision)
	return err
}
