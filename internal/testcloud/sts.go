package testcloud

// identityAnswer is the response of GetCallerIdentity.
type identityAnswer struct {
	Arn, Account string
	UserID       string `xml:"UserId"`
}

// callerIdentity returns the identity of a caller.
func (a *AWS) callerIdentity(c awsCall) identityAnswer {
	if id := c.callerMachine(); id != "" {
		role := ""
		if r := a.roleOfMachine(id); r != nil {
			role = r.name
		}
		return identityAnswer{"arn:aws:sts::" + AWSAccount + ":assumed-role/" + role + "/" + id, AWSAccount, iamID("AROA", role) + ":" + id}
	}
	return identityAnswer{"arn:aws:iam::" + AWSAccount + ":user/operator", AWSAccount, "AIDAOPERATOR"}
}
