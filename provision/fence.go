package provision

import "context"

// fenceKey is the key of a context's fence.
type fenceKey struct{}

// WithFence returns a context whose changes are fenced: checkLeadership is called immediately before each call to
// a cloud and each other change, and an error prevents it. Clouds cannot check a controller's fencing
// token, so the controller checks its lease itself. checkLeadership must be safe for concurrent use and return at
// once.
func WithFence(ctx context.Context, checkLeadership func() error) context.Context {
	return context.WithValue(ctx, fenceKey{}, checkLeadership)
}

// CheckFence returns the error of the context's fence; nil while changes are allowed, and without a fence.
func CheckFence(ctx context.Context) error {
	if checkLeadership, fenced := ctx.Value(fenceKey{}).(func() error); fenced {
		return checkLeadership()
	}
	return nil
}
