package aws

import (
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/provision"
)

// startFailureTTL is how long a launch that failed at startup blocks a repetition: as long as a refused one.
const startFailureTTL = 10 * time.Minute

// startFailure returns why EC2 ended an instance at startup, when the same offering is about to be launched
// again: another attempt would cost a minute and fail the same way. nil where the instance ended for
// another reason.
func (r *region) startFailure(o provision.Offering, i ec2types.Instance) error {
	had, _ := r.objectFromInstance(i)
	again := had.Offering != nil && had.Offering.Type == o.Type && had.Offering.Capacity == o.Capacity && (o.Zone == "" || had.Offering.Zone == o.Zone)
	if !again || i.StateReason == nil || r.p.cfg.Now().Sub(had.Started) > startFailureTTL {
		return nil
	}
	code := aws.ToString(i.StateReason.Code)
	err := fmt.Errorf("%s failed to start: %s", had.Handle, aws.ToString(i.StateReason.Message))
	if scope, refused := startFailureScopes[code]; refused {
		return &provision.CapacityError{Offering: o, Scope: scope, Code: code, Err: err}
	}
	if hint, wrong := permanentStartFailures[code]; wrong {
		return fmt.Errorf("%s: %w: %s", o, err, hint)
	}
	return nil
}
