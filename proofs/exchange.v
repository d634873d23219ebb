(* SPDX-License-Identifier: Apache-2.0
   The threshold exchange (`exchange` of include/specagg/verify/unanimous.hpp): sites that race with one noise E, and do
   not see each other's rows, name their contenders one by one until the token of the combined race is certain.

     exchange_ends           it ends: with V tokens after at most V + 1 passes over the sites
     exchange_names          no site names a token twice, and none without weight
     exchange_finds_winner   what it ends with wins the race of F(p^1 .. p^n), ties included (the lower id wins); it
                             ends with no token exactly where no token has combined weight

   F increases in each coordinate and is 1-homogeneous, as in unanimous.v. In the header a site that has sent nothing
   yet has the score infinity. Every pass asks every site, so no bound has an infinity in it (`pass_asks_all`). *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import unanimous.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Exchange.
Variables (R : realFieldType) (size_of_vocabulary sites : nat).
Local Notation token := 'I_size_of_vocabulary.
Local Notation site := 'I_sites.
Variables (F : (site -> R) -> R) (p : site -> token -> R) (E : token -> R).
Implicit Types (i j v : token) (k : site) (w : token -> R).

(* ---- races ------------------------------------------------------------------------------------------------------- *)

(* The best so far, when i takes part, too. *)
Definition better w (best : option token) i : option token :=
  if best is Some b then if before E w i b then Some i else best else Some i.

(* The best of the tokens in A, in one pass. *)
Definition race w (A : pred token) : option token :=
  foldl (fun best i => if A i then better w best i else best) None (enum 'I_size_of_vocabulary).

(* ---- the exchange ------------------------------------------------------------------------------------------------ *)

(* The last contender that a site has sent; Ended: it has sent all. *)
Inductive sent := Nothing | Sent (i : token) | Ended.

(* Whether the site k has still to send j, if `l` was its last. *)
Definition after k (l : sent) j : bool :=
  match l with Nothing => true | Sent i => before E (p k) i j | Ended => false end.
Definition unsent k l : pred token := fun j => (0 < p k j) && after k l j.
(* The site's best contender after `l`. *)
Definition next k l : option token := race (p k) (unsent k l).

(* best: of the combined race. named: the number of contenders sent. more: whether one was sent in this pass. *)
Record exchange_state := ExchangeState { last_sent : site -> sent; best : option token; named : nat; more : bool }.

Definition set_last (l : site -> sent) k (x : sent) : site -> sent := fun k' => if k' == k then x else l k'.

(* One site's turn. All sites answer with their scores of i; F of these is i's combined score (combined_score). *)
Definition ask (st : exchange_state) k : exchange_state :=
  if last_sent st k is Ended then st
  else if next k (last_sent st k) is Some i then
    ExchangeState (set_last (last_sent st) k (Sent i))
      (if 0 < score E (combined F p) i then better (combined F p) (best st) i else best st) (named st).+1 true
  else ExchangeState (set_last (last_sent st) k Ended) (best st) (named st) (more st).

Definition pass (st : exchange_state) : exchange_state :=
  foldl ask (ExchangeState (last_sent st) (best st) (named st) false) (enum 'I_sites).

(* Nothing is the header's infinity; pass_asks_all. *)
Definition bound (st : exchange_state) : site -> R := fun k => if last_sent st k is Sent i then score E (p k) i else 0.
Definition certain (st : exchange_state) : bool :=
  if best st is Some i then F (bound st) < score E (combined F p) i else false.

(* Passes over the sites; None if it has not ended after `fuel` of them. *)
Fixpoint exchange_from (fuel : nat) (st : exchange_state) : option exchange_state :=
  if fuel is fuel'.+1 then
    let st' := pass st in
    if certain st' then Some st' else if more st' then exchange_from fuel' st' else Some st'
  else None.

Definition start : exchange_state := ExchangeState (fun=> Nothing) None 0 true.
Definition exchange (fuel : nat) : option exchange_state := exchange_from fuel start.

(* ---- the order of contenders ------------------------------------------------------------------------------------- *)

Lemma before_irreflexive w i : before E w i i = false.
Proof. by rewrite /before ltxx ltnn andbF. Qed.

Lemma before_trans w : transitive (before E w).
Proof.
move=> j i k; rewrite /before => /orP [ij|/andP [/eqP ij lij]] /orP [jk|/andP [/eqP jk ljk]].
- by rewrite (lt_trans jk ij).
- by rewrite -jk ij.
- by rewrite ij jk.
- by rewrite ij jk eqxx (ltn_trans lij ljk) orbT.
Qed.

Lemma before_total w i j : i != j -> before E w i j || before E w j i.
Proof.
move=> ne; rewrite /before; case: (ltgtP (score E w i) (score E w j)) => //= _.
by rewrite -neq_ltn.
Qed.

Lemma before_score w i j : before E w i j -> score E w j <= score E w i.
Proof. by rewrite /before => /orP [/ltW //|/andP [/eqP -> _]]. Qed.

Lemma after_trans k l i j : after k l i -> before E (p k) i j -> after k l j.
Proof. by case: l => //= i'; apply: before_trans. Qed.

(* best is the first of B in the order. *)
Definition first_of w (B : pred token) (best : option token) : Prop :=
  if best is Some i then B i /\ (forall j, B j -> j != i -> before E w i j) else forall j, ~~ B j.

Lemma first_of_ext w (B B' : pred token) best : B =1 B' -> first_of w B best -> first_of w B' best.
Proof.
move=> e; case: best => [i|] /=; last by move=> h j; rewrite -e.
by rewrite -e => -[Bi h]; split=> // j; rewrite -e; apply: h.
Qed.

Lemma first_of_better w (B : pred token) best i :
  first_of w B best -> first_of w (fun j => B j || (j == i)) (better w best i).
Proof.
case: best => [b|] /= h; last by split=> [|j]; rewrite ?eqxx ?orbT // (negbTE (h j)) /= => ->.
case: h => Bb h; case: ifP => ib /=.
- split=> [|j /orP [Bj|/eqP ->] ne]; rewrite ?eqxx ?orbT //; last by rewrite eqxx in ne.
  by case: (eqVneq j b) => [-> //|jb]; apply: before_trans ib (h j Bj jb).
- split=> [|j /orP [Bj|/eqP ->] ne]; rewrite ?Bb //; first exact: h.
  by have := before_total w ne; rewrite ib.
Qed.

Lemma race_first w (A : pred token) : first_of w A (race w A).
Proof.
rewrite /race; have: first_of w (fun j => A j && (j \in take 0 (enum 'I_size_of_vocabulary))) None.
  by move=> j /=; rewrite take0 andbF.
have fold l (B : pred token) b : first_of w B b ->
  first_of w (fun j => B j || (A j && (j \in l))) (foldl (fun best i => if A i then better w best i else best) b l).
  elim: l B b => [|i l ih] B b h /=; first by apply: first_of_ext h => j; rewrite andbF orbF.
  case: (boolP (A i)) => Ai.
  - apply: first_of_ext (ih _ _ (first_of_better i h)) => j; rewrite inE -orbA; congr (_ || _).
    by case: eqP => [->|_] //=; rewrite Ai.
  - apply: first_of_ext (ih _ _ h) => j; rewrite inE; congr (_ || _).
    by case: eqP => [->|_] //=; rewrite (negbTE Ai).
move=> /(fold (enum 'I_size_of_vocabulary)); apply: first_of_ext => j.
by rewrite take0 /= andbF /= mem_enum andbT.
Qed.

(* ---- what is known during the exchange --------------------------------------------------------------------------- *)

(* The tokens that the site k has named, and that any site has named. *)
Definition has_sent k l : pred token := fun j => (0 < p k j) && ~~ after k l j.
Definition any_sent (st : exchange_state) : pred token := fun j => [exists k, has_sent k (last_sent st k) j].
Definition weighs : pred token := fun j => 0 < score E (combined F p) j.
Definition knows_best (st : exchange_state) : Prop :=
  first_of (combined F p) (fun j => any_sent st j && weighs j) (best st).

Lemma next_first k l : first_of (p k) (unsent k l) (next k l).
Proof. exact: race_first. Qed.

Lemma has_sent_next k l i j : next k l = Some i -> has_sent k (Sent i) j = has_sent k l j || (j == i).
Proof.
move=> e; have := next_first k l; rewrite e => -[/andP [pi ai] h]; rewrite /has_sent.
case: (eqVneq j i) => [->|ne]; first by rewrite pi /= before_irreflexive orbT.
rewrite orbF; case pj: (0 < p k j) => //=; congr (~~ _); apply/idP/idP => [ij|aj].
- exact: after_trans ai ij.
- by apply: h => //; rewrite /unsent pj.
Qed.

Lemma has_sent_ended k l : next k l = None -> has_sent k Ended =1 has_sent k l.
Proof.
move=> e j; have := next_first k l; rewrite e => /(_ j); rewrite /unsent /has_sent.
by case: (0 < p k j) => //=; case: (after k l j).
Qed.

Lemma any_sent_set st k x b n m j :
  any_sent (ExchangeState (set_last (last_sent st) k x) b n m) j =
  has_sent k x j || [exists k', (k' != k) && has_sent k' (last_sent st k') j].
Proof.
apply/existsP/orP => [[k']|[h|/existsP [k' /andP [ne h]]]]; rewrite /= /set_last.
- by case: eqP => [->|/eqP ne] h; [left | right; apply/existsP; exists k'; rewrite ne].
- by exists k; rewrite eqxx.
- by exists k'; rewrite (negbTE ne).
Qed.

Lemma any_sent_split st k j :
  any_sent st j = has_sent k (last_sent st k) j || [exists k', (k' != k) && has_sent k' (last_sent st k') j].
Proof.
apply/existsP/orP => [[k' h]|[h|/existsP [k' /andP [_ h]]]]; try by [exists k | exists k'].
by case: (eqVneq k' k) => [<-|ne]; [left | right; apply/existsP; exists k'; rewrite ne].
Qed.

Lemma ask_knows_best st k : knows_best st -> knows_best (ask st k).
Proof.
rewrite /ask; case l: (last_sent st k) => [|i|] //; rewrite -l => {l} h.
all: case e: (next k (last_sent st k)) => [j|]; last by
  apply: first_of_ext h => v; rewrite any_sent_set (any_sent_split st k) (has_sent_ended e).
all: case: (boolP (0 < score E (combined F p) j)) => w.
all: try by (apply: first_of_ext (first_of_better j h) => v;
  rewrite any_sent_set (any_sent_split st k) (has_sent_next v e);
  case: (eqVneq v j) => [->|_]; rewrite ?orbF // ?orbT /weighs w).
all: apply: first_of_ext h => v; rewrite any_sent_set (any_sent_split st k) (has_sent_next v e).
all: by case: (eqVneq v j) => [->|_]; rewrite ?orbF // /weighs (negbTE w) !andbF.
Qed.

(* Every pass asks every site. *)
Lemma ask_other st k k' : k' != k -> last_sent (ask st k) k' = last_sent st k'.
Proof.
by rewrite /ask => /negbTE ne; case: (last_sent st k) => [|i|] //; case: (next k _) => [j|] //=; rewrite /set_last ne.
Qed.

Lemma ask_asks st k : last_sent (ask st k) k <> Nothing.
Proof.
by rewrite /ask; case l: (last_sent st k) => [|i|]; rewrite ?l //; case: (next k _) => [j|] //=; rewrite /set_last eqxx.
Qed.

Lemma fold_ask_other ks st k : k \notin ks -> last_sent (foldl ask st ks) k = last_sent st k.
Proof.
elim: ks st => //= k' ks ih st; rewrite inE negb_or => /andP [ne nin].
by rewrite ih // ask_other.
Qed.

(* In a pass every site has one turn, at what it has sent in earlier passes. *)
Lemma pass_asks st k : exists st', last_sent st' k = last_sent st k /\ last_sent (pass st) k = last_sent (ask st' k) k.
Proof.
have kin : k \in enum 'I_sites by rewrite mem_enum.
have := enum_uniq 'I_sites; rewrite /pass; move: kin; set st0 := ExchangeState _ _ _ _.
rewrite -[last_sent st k]/(last_sent st0 k); elim: (enum _) st0 => //= k' ks ih st0; rewrite inE.
case: eqP => [<- _ /andP [nin _]|/eqP ne /= kin /andP [_ u]].
- by exists st0; rewrite fold_ask_other.
- have [st' [e1 ->]] := ih (ask st0 k') kin u.
  by exists st'; rewrite e1 ask_other //; apply/eqP.
Qed.

Lemma pass_asks_all st k : last_sent (pass st) k <> Nothing.
Proof. by have [st' [_ ->]] := pass_asks st k; apply: ask_asks. Qed.

Lemma pass_knows_best st : knows_best st -> knows_best (pass st).
Proof.
move=> h; rewrite /pass; set st0 := ExchangeState _ _ _ _; have {h} : knows_best st0 by [].
by elim: (enum _) st0 => //= k ks ih st0 h; apply: ih; apply: ask_knows_best.
Qed.

(* ---- it ends ----------------------------------------------------------------------------------------------------- *)

Definition contenders k : nat := #|[pred v | 0 < p k v]|.

Lemma left_next k l i : next k l = Some i -> (#|unsent k (Sent i)| < #|unsent k l|)%N.
Proof.
move=> e; have := next_first k l; rewrite e => -[li h]; have /andP [pi ai] := li.
apply: proper_card; apply/properP; split.
- by apply/subsetP => j /andP [pj ij]; rewrite unfold_in /unsent pj; apply: after_trans ai ij.
- by exists i; rewrite // unfold_in /unsent /= before_irreflexive andbF.
Qed.

Lemma ask_left st k : (#|unsent k (last_sent (ask st k) k)| <= #|unsent k (last_sent st k)|.-1)%N.
Proof.
have ended : #|unsent k Ended| = 0%N by apply: eq_card0 => j; rewrite unfold_in /unsent /= andbF.
rewrite /ask; case l: (last_sent st k) => [|i|]; rewrite -?l; try by rewrite l ended.
all: case e: (next k (last_sent st k)) => [j|] /=; rewrite /set_last eqxx ?ended //.
all: by have lt := left_next e; rewrite -ltnS (ltn_predK lt).
Qed.

Lemma pass_left st k : (#|unsent k (last_sent (pass st) k)| <= #|unsent k (last_sent st k)|.-1)%N.
Proof. by have [st' [<- ->]] := pass_asks st k; apply: ask_left. Qed.

(* Where nothing is left to send, a pass sends nothing. *)
Lemma ask_quiet st k : #|unsent k (last_sent st k)| = 0%N -> more (ask st k) = more st.
Proof.
move=> h; rewrite /ask; case l: (last_sent st k) h => [|i|] // h.
all: rewrite -l in h *; case e: (next k _) => [j|] //; have := next_first k (last_sent st k); rewrite e => -[lj _].
all: by have := card0_eq h j; rewrite -[LHS]/(unsent k (last_sent st k) j) lj.
Qed.

Lemma pass_quiet st : (forall k, #|unsent k (last_sent st k)| = 0%N) -> more (pass st) = false.
Proof.
move=> h; rewrite /pass; set st0 := ExchangeState _ _ _ _.
have {h} : forall k, #|unsent k (last_sent st0 k)| = 0%N by [].
rewrite -[RHS]/(more st0); elim: (enum _) st0 => //= k ks ih st0 h.
rewrite ih ?ask_quiet // => k'; case: (eqVneq k' k) => [->|ne]; last by rewrite ask_other.
by apply/eqP; rewrite -leqn0; apply: leq_trans (ask_left st0 k) _; rewrite h.
Qed.

(* With V tokens: V + 1 passes are enough. *)
Theorem exchange_ends fuel : (size_of_vocabulary < fuel)%N -> exists st, exchange fuel = Some st.
Proof.
suff go m st : (forall k, #|unsent k (last_sent st k)| <= m)%N -> (m < fuel)%N ->
  exists st', exchange_from fuel st = Some st'.
  by apply: go => k; rewrite -[X in (_ <= X)%N]card_ord max_card.
elim: fuel m st => // fuel ih m st h /=; rewrite ltnS => lt.
case: ifP => _; first by eexists.
case e: (more (pass st)); last by eexists.
case: m h lt => [|m] h lt.
  by move: e; rewrite pass_quiet // => k; apply/eqP; rewrite -leqn0.
by apply: ih lt => k; apply: leq_trans (pass_left st k) _; rewrite -ltnS; case: #|_| (h k).
Qed.

Lemma ask_named st k : (named (ask st k) + \sum_k' #|unsent k' (last_sent (ask st k) k')| <=
  named st + \sum_k' #|unsent k' (last_sent st k')|)%N.
Proof.
rewrite (bigD1 k) // [in leqRHS](bigD1 k) //=.
rewrite (eq_bigr (fun k' => #|unsent k' (last_sent st k')|)) => [|k' ne]; last by rewrite ask_other.
rewrite !addnA leq_add2r; have := ask_left st k; rewrite /ask.
case l: (last_sent st k) => [|i|]; rewrite -?l //.
all: case e: (next k (last_sent st k)) => [j|] /=; rewrite /set_last eqxx => le.
all: try by rewrite leq_add2l (leq_trans le) // leq_pred.
all: by rewrite addSnnS leq_add2l left_next.
Qed.

Theorem exchange_names fuel st : exchange fuel = Some st -> (named st <= \sum_k contenders k)%N.
Proof.
pose all st := (named st + \sum_k #|unsent k (last_sent st k)|)%N.
have pass_named st' : (all (pass st') <= all st')%N.
  rewrite /pass; set st0 := ExchangeState _ _ _ _; rewrite -[leqRHS]/(all st0).
  elim: (enum _) st0 => //= k ks ih st0; apply: leq_trans (ih _) _; exact: ask_named.
have go n st' : exchange_from n st' = Some st -> (named st <= all st')%N.
  elim: n st' => //= n ih st'; have le := pass_named st'.
  case: ifP => _; first by move=> [<-]; apply: leq_trans le; apply: leq_addr.
  case: ifP => _; first by move=> /ih h; apply: leq_trans le.
  by move=> [<-]; apply: leq_trans le; apply: leq_addr.
move=> /go; rewrite /all /= add0n => h; apply: leq_trans h _; apply: leq_sum => k _.
by apply: subset_leq_card; apply/subsetP => j; rewrite !unfold_in /unsent => /andP [].
Qed.

(* ---- what it ends with ------------------------------------------------------------------------------------------- *)

Hypotheses (F_increasing : increasing F) (F_homogeneous : homogeneous F).
Hypotheses (p_ge0 : forall k v, 0 <= p k v) (E_gt0 : forall v, 0 < E v).

Lemma score_ge0 k v : 0 <= score E (p k) v.
Proof. by rewrite divr_ge0 // ltW. Qed.

Lemma weighs_combined v : weighs v = (0 < combined F p v).
Proof. by rewrite /weighs /score pmulr_lgt0 // invr_gt0. Qed.

(* What no site has sent scores at most F of the last scores. *)
Lemma not_sent_score st v : (forall k, last_sent st k <> Nothing) -> ~~ any_sent st v ->
  score E (combined F p) v <= F (bound st).
Proof.
move=> asked; rewrite negb_exists combined_score // => /forallP h; apply: F_increasing => k.
rewrite score_ge0 /bound; have := h k; rewrite /has_sent.
case: (ltrP 0 (p k v)) => [pv|p0 _] /=; last first.
  rewrite /score (_ : p k v = 0) ?mul0r; last by apply/le_anti; rewrite p0 p_ge0.
  by case: (last_sent st k) => // i; apply: score_ge0.
by case: (last_sent st k) (asked k) => [//|i|//] _; rewrite negbK => /before_score.
Qed.

Lemma F0 : F (fun=> 0) = 0.
Proof.
have e : F (fun=> 0) = 2%:R * F (fun=> 0).
  rewrite -F_homogeneous ?ltr0n //.
  by apply: le_anti; apply/andP; split; apply: F_increasing => k; rewrite mulr0 lexx.
by apply: (@addrI _ (F (fun=> 0))); rewrite addr0 -mulr2n -mulr_natl -e.
Qed.

Lemma quiet_pass_ended st k : more (pass st) = false -> last_sent (pass st) k = Ended.
Proof.
have quiet st' k' : more (ask st' k') = false -> more st' = false /\ last_sent (ask st' k') k' = Ended.
  rewrite /ask; case l: (last_sent st' k') => [|i|] //.
  - by case: (next k' _) => //= e; rewrite /set_last eqxx.
  - by case: (next k' _) => //= e; rewrite /set_last eqxx.
suff fold ks st0 : more (foldl ask st0 ks) = false ->
  more st0 = false /\ forall k', (k' \in ks) \/ last_sent st0 k' = Ended -> last_sent (foldl ask st0 ks) k' = Ended.
  by move=> /fold [_]; apply; left; rewrite mem_enum.
elim: ks st0 => [|k' ks ih] st0 /=; first by split=> // k' [].
move=> /ih [/quiet [q e] h]; split=> // j hj; apply: h.
case: (eqVneq j k') hj => [-> _|ne]; first by right.
by rewrite inE (negbTE ne) /= ask_other.
Qed.

Theorem exchange_finds_winner fuel st : exchange fuel = Some st ->
  if best st is Some i then wins E (combined F p) i else forall v, combined F p v = 0.
Proof.
have F_ge0 v : 0 <= combined F p v by rewrite -F0; apply: F_increasing => k; rewrite lexx p_ge0.
have done st' : knows_best st' -> (forall k, last_sent st' k <> Nothing) ->
  certain st' \/ (forall k, last_sent st' k = Ended) ->
  if best st' is Some i then wins E (combined F p) i else forall v, combined F p v = 0.
  rewrite /knows_best /first_of /certain => kb asked; case: (best st') kb => [i|] kb c; last first.
    move=> v; case: c => // ended; have := kb v; rewrite negb_and weighs_combined -leNgt orbC.
    case: (lerP (combined F p v) 0) => [le _|_]; first by apply/le_anti; rewrite le F_ge0.
    rewrite negb_exists => /forallP h.
    (* no site has any probability for v *)
    apply/le_anti; rewrite F_ge0 -F0 andbT; apply: F_increasing => k; rewrite p_ge0 leNgt.
    by have := h k; rewrite /has_sent ended /= andbT.
  case: kb => /andP [_ wi] h; split=> [|j ne]; first by rewrite -weighs_combined.
  case: (boolP (any_sent st' j)) => [sj|nj].
    case: (boolP (weighs j)) => wj; first by apply: h; rewrite ?sj.
    by rewrite /before (le_lt_trans _ wi) // leNgt.
  have le := not_sent_score asked nj; case: c => [c|ended]; first by rewrite /before (le_lt_trans le c).
  rewrite /before (le_lt_trans le) // (le_lt_trans _ wi) // -F0.
  by apply: F_increasing => k; rewrite /bound ended lexx.
have go n st' : knows_best st' -> exchange_from n st' = Some st ->
  if best st is Some i then wins E (combined F p) i else forall v, combined F p v = 0.
  elim: n st' => //= n ih st' /pass_knows_best kb.
  case: ifP => [c [<-]|_]; first by apply: done => //; [exact: pass_asks_all | left].
  case: ifP => [_|q [<-]]; first exact: ih.
  by apply: done => //; [exact: pass_asks_all | right=> k; exact: quiet_pass_ended].
apply: go => v; rewrite /= negb_and negb_exists; apply/orP; left; apply/forallP => k.
by rewrite /has_sent /= andbF.
Qed.

(* There is one winner at most: the exchange ends with i if and only if i wins. *)
Corollary exchange_is_the_race fuel i : (size_of_vocabulary < fuel)%N ->
  wins E (combined F p) i <-> exists st, exchange fuel = Some st /\ best st = Some i.
Proof.
move=> lt; split=> [[wi h]|[st [e b]]]; last by have := exchange_finds_winner e; rewrite b.
have [st e] := exchange_ends lt; exists st; split=> //; have := exchange_finds_winner e.
case: (best st) => [j [wj hj]|/(_ i) z]; last by rewrite z ltxx in wi.
congr Some; apply/eqP; case: (eqVneq j i) => // ne.
have ji := hj i _; have := before_trans (h j ne) (hj i _); rewrite eq_sym => /(_ ne).
by rewrite before_irreflexive.
Qed.

End Exchange.
