package aws

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

var _ provision.InterruptionReporter = (*Provider)(nil)

// codesInterrupted are EC2's reasons of the state of an interrupted spot instance
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html, November 2026).
var codesInterrupted = []string{"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"}

// isInterrupted reports whether EC2 has interrupted a spot instance.
func isInterrupted(i ec2types.Instance) bool {
	return i.StateReason != nil && slices.Contains(codesInterrupted, aws.ToString(i.StateReason.Code))
}

// Interruptions implements provision.InterruptionReporter. EC2 lists a terminated instance for about an hour.
func (p *Provider) Interruptions(ctx context.Context, name service.Region, of string) ([]provision.Object, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	ended, err := r.listInstances(ctx, ofService(of), filter("instance-state-name", "shutting-down", "terminated"))
	if err != nil {
		return nil, wrapError(fmt.Sprintf("listing the interrupted machines of %s", name), err)
	}
	var found []provision.Object
	for _, i := range ended {
		if o, owned := r.objectFromInstance(i); owned && o.Interrupted {
			o.TerminatedReason = fmt.Sprintf("%s: %s", stateOf(i), cmp.Or(aws.ToString(i.StateReason.Message), aws.ToString(i.StateReason.Code)))
			found = append(found, o)
		}
	}
	return found, nil
}
