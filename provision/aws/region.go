package aws

import (
	"context"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"

	"skyserve/provision"
)

// region is one region of AWS.
type region struct {
	p       *Provider
	name    string // us-east-1
	ec2     *ec2.Client
	quotas  *servicequotas.Client
	pricing *pricing.Client   // nil where nobody tells prices
	wanted  provision.Network // where machines are to stand; zero = in the default network

	asking chan struct{} // holds the one who asks for the network, for all

	mu     sync.Mutex        // guards what follows
	net    *network          // nil until it was asked for
	groups map[string]string // ids of security groups by service, owner and role
}

// filter is a condition of a list.
func filter(name string, values ...string) ec2types.Filter {
	return ec2types.Filter{Name: aws.String(name), Values: values}
}

// ofService are the conditions for what carries the tags of a service, or of any
// where the name is empty.
func ofService(name string) ec2types.Filter {
	if name == "" {
		return filter("tag-key", tagService)
	}
	return filter("tag:"+tagService, name)
}

// forget drops what was remembered of the network: it turned out to be no longer so.
func (r *region) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.net, r.groups = nil, map[string]string{}
}

// groupKey is under which a security group is remembered.
func groupKey(w provision.Want, role string) string { return w.Service + " " + w.Owner + " " + role }

// remember notes the id of a group.
func (r *region) remember(w provision.Want, role, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups[groupKey(w, role)] = id
}

// groupID is the security group of a role of the service of w, which must be the
// same owner's. It waits for it to come to be seen.
func (r *region) groupID(ctx context.Context, w provision.Want, role string) (string, error) {
	r.mu.Lock()
	id := r.groups[groupKey(w, role)]
	r.mu.Unlock()
	if id != "" {
		return id, nil
	}
	found, err := r.p.appears(ctx, func() (bool, error) {
		g, err := r.group(ctx, groupName(w.Service, role))
		if g == nil || err != nil {
			return false, err
		}
		id = aws.ToString(g.GroupId)
		return true, ownedError(w, fromEC2Tags(g.Tags))
	})
	if err != nil {
		return "", err
	}
	if !found {
		return "", fmt.Errorf("finding the security group %s: there is none: make the firewall of every %s of %s first", groupName(w.Service, role), role, w.Service)
	}
	r.remember(w, role, id)
	return id, nil
}

// triesToAppear bounds the looks for something that was made a moment ago: about a
// minute.
const triesToAppear = 30
