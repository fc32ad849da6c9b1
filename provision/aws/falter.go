package aws

import (
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/provision"
)

// falterFor is how long a launch that ended at once keeps the same from being asked for
// again: as long as one that was refused.
const falterFor = 10 * time.Minute

// faltered is what kept an instance from starting although EC2 had granted it, where the
// same was to be launched again a moment later: it would cost a minute each time, and end
// as soon. nil where it ended for another reason.
func (r *region) faltered(o provision.Offering, i ec2types.Instance) error {
	had, _ := r.object(i)
	again := had.Offering != nil && had.Offering.Type == o.Type && had.Offering.Capacity == o.Capacity && (o.Zone == "" || had.Offering.Zone == o.Zone)
	if !again || i.StateReason == nil || r.p.cfg.Now().Sub(had.Started) > falterFor {
		return nil
	}
	code := aws.ToString(i.StateReason.Code)
	err := fmt.Errorf("%s ended while it started: %s", had.Handle, aws.ToString(i.StateReason.Message))
	if scope, refused := falterScopes[code]; refused {
		return &provision.CapacityError{Offering: o, Scope: scope, Code: code, Err: err}
	}
	if hint, wrong := misfits[code]; wrong {
		return fmt.Errorf("%s: %w: %s", o, err, hint)
	}
	return nil
}
