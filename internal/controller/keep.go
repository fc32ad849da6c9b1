package controller

import (
	"context"
	"encoding/json"
)

// keep puts a value under a key of the store, where balancers hear of it; not over
// that of a controller that took over. What is kept has its fencing token as token.
func keep(ctx context.Context, l lease, st state, key string, value any) error {
	if !l.Valid() {
		return errLeaseLost
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	old, revision, err := st.Get(ctx, key)
	switch {
	case isGone(err):
		_, err = st.Create(ctx, key, data)
	case err == nil:
		var held struct {
			Token uint64 `json:"token"`
		}
		if json.Unmarshal(old, &held) == nil && held.Token > l.Token() {
			return errLeaseLost
		}
		_, err = st.CompareAndSwap(ctx, key, data, revision)
	}
	return err
}
