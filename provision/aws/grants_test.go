package aws

import (
	"fmt"
	"slices"
	"testing"

	"skyserve/provision"
)

// The grants of an identity survive their encoding in tags, also those with a health check for each of many balancers,
// and after there were more balancers.
func TestGrantTags(t *testing.T) {
	tags := map[string]string{}
	for _, n := range []int{30, 5, 3, 0, 6, 12} {
		var checks []string
		for i := range n {
			checks = append(checks, fmt.Sprintf("%08d-1111-2222-3333-444444444444", i))
		}
		grants := []provision.Grant{provision.GrantOperate, provision.GrantRecords("Z0123456789ABCDEFGHIJ", "chat.example.com", checks)}
		for key, value := range grantTags(grants) {
			if len(value) > maxTagValue {
				t.Errorf("%d checks: tag %s has %d characters", n, key, len(value))
			}
			tags[key] = value // tags are added and never removed
		}
		if got := grantsOf(tags); !slices.Equal(got, grants) {
			t.Errorf("%d checks: got %v, want %v", n, got, grants)
		}
	}
}

// A grant that fills its tags exactly is not continued by those of an earlier grant.
func TestGrantTagsAreFull(t *testing.T) {
	tags := map[string]string{}
	for n := 2000; n > 0; n-- {
		grant := provision.GrantRecords("Z", fmt.Sprintf("%0*d", n, 7), nil)
		for key, value := range grantTags([]provision.Grant{grant}) {
			tags[key] = value
		}
		if got := grantsOf(tags); !slices.Equal(got, []provision.Grant{grant}) {
			t.Fatalf("%d characters: got %v", n, got)
		}
	}
}
