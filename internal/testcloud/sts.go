package testcloud

// identityAnswer is who calls.
type identityAnswer struct {
	Arn, Account string
	UserID       string `xml:"UserId"`
}

// callerIdentity is who a call is of.
func (a *AWS) callerIdentity(c awsCall) identityAnswer {
	if id := c.caller(); id != "" {
		role := ""
		if r := a.roleAt(id); r != nil {
			role = r.name
		}
		return identityAnswer{"arn:aws:sts::" + AWSAccount + ":assumed-role/" + role + "/" + id, AWSAccount, "AROA" + role + ":" + id}
	}
	return identityAnswer{"arn:aws:iam::" + AWSAccount + ":user/operator", AWSAccount, "AIDAOPERATOR"}
}
