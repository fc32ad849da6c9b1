package aws

import (
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/provision"
)

// startFailureTTL is how long a launch that failed at startup prevents its repetition: as long as an
// offering without capacity is skipped.
const startFailureTTL = 10 * time.Minute

// startFailure returns the error with which EC2 ended an earlier instance of offering o at startup. Another
// attempt would cost a minute and fail for the same reason. It returns nil if the instance ended for
// another reason.
func (r *region) startFailure(o provision.Offering, i ec2types.Instance) error {
	earlier, _ := r.objectFromInstance(i)
	same := earlier.Offering != nil && earlier.Offering.Type == o.Type && earlier.Offering.Capacity == o.Capacity && (o.Zone == "" || earlier.Offering.Zone == o.Zone)
	if !same || i.StateReason == nil || r.p.cfg.Now().Sub(earlier.Started) > startFailureTTL {
		return nil
	}
	code := aws.ToString(i.StateReason.Code)
	err := fmt.Errorf("instance %s did not start: %s", earlier.Handle, aws.ToString(i.StateReason.Message))
	if scope, ok := startFailureScopes[code]; ok {
		return &provision.CapacityError{Offering: o, Scope: scope, Code: code, Err: err}
	}
	if hint, ok := permanentStartFailures[code]; ok {
		return fmt.Errorf("%s: %w: %s", o, err, hint)
	}
	return nil
}
