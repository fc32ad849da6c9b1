package gcp

import (
	"context"
	"fmt"
	"strings"

	compute "cloud.google.com/go/compute/apiv1"
)

// maxPolls is the maximum number of polls for a change: 15 minutes. Machines with many GPUs take some
// minutes to stop.
const maxPolls = 450

// pollUntil polls until a change is done.
func (p *Provider) pollUntil(ctx context.Context, what string, done func() (bool, error)) error {
	for range maxPolls {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := sleep(ctx, p.cfg.Poll); err != nil {
			return err
		}
	}
	return fmt.Errorf("waiting for %s: not complete after %s", what, maxPolls*p.cfg.Poll)
}

// waitOperation waits for the operation that a call started. Unlike the library's own Operation.Wait it
// returns the errors of the operation.
func (p *Provider) waitOperation(ctx context.Context, op *compute.Operation, err error) error {
	if err != nil {
		return err
	}
	err = p.pollUntil(ctx, "operation "+op.Name(), func() (bool, error) {
		if op.Done() {
			return true, nil
		}
		// Poll returns an error for a failed operation too, but without details
		err := op.Poll(ctx)
		if op.Done() {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return err
	}
	if errs := op.Proto().GetError().GetErrors(); len(errs) > 0 {
		var messages []string // each exceeded quota has its own message
		for _, e := range errs {
			messages = append(messages, e.GetMessage())
		}
		return &operationError{errs[0].GetCode(), strings.Join(messages, "; ")}
	}
	if op.Proto().GetHttpErrorStatusCode() >= 400 {
		return &operationError{fmt.Sprint(op.Proto().GetHttpErrorStatusCode()), op.Proto().GetHttpErrorMessage()}
	}
	return nil
}
