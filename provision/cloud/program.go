package cloud

import (
	"skyserve/internal/service"
	"skyserve/provision"
)

// addProgram adds the skyserve binary in the service's bucket of a cloud, and returns the grant to download
// it; none if machines of the cloud download the binary from another URL.
func (l *layout) addProgram(cloud string, global service.Region) []provision.Grant {
	p, ok := l.Programs[cloud]
	if !ok {
		return nil
	}
	w := provision.Desired{
		ID: provision.ProgramID(cloud, p.SHA256), Kind: provision.KindProgram, Region: global, Program: &p,
		Service: l.Spec.Name, Owner: l.Owner, SpecHash: provision.ProgramSpec(p.SHA256),
	}
	l.result.Desired = append(l.result.Desired, w)
	return []provision.Grant{provision.GrantProgram(p.Bucket)}
}
