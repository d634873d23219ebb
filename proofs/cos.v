(* SPDX-License-Identifier: Apache-2.0
   Collaborative decoding via speculation (include/specagg/decode/collaborative.hpp): n models take turns in drafting,
   and whatever they draft, the decoder's texts have exactly the joint law of ancestral sampling from pi. pi is any law
   of the next token given the text, for example any combination of the models' rows there. Fu et al. 2025
   (arXiv:2502.01662).

     collaborative_decode_has_law      decoding until a text has N tokens
     collaborative_decode_probability  from the empty text: a text is written with the probability that pi gives it
     collaborative_turn_keeps_value    one turn does not change the expected value of the text, whatever is cached
     collaborative_turn_advances       a turn emits a token, or one more model has scored the first cached token; so the
                                       decoder ends after a bounded number of turns

   As in the header: the drafts that are not decided stay cached between turns, each with the law it was drawn from. A
   turn (1) lets a drafter propose, if nothing is cached, (2) takes the first model that has no row for the first cached
   token, and gives it the rows of all cached tokens and one more, (3) verifies the cached tokens from first to last
   while every model has a row: an accepted token joins the text, a rejected one is replaced from norm((pi - q)+) and
   drops all that is cached, (4) lets the model of this turn draft more. Nothing is drafted behind a drafted end of
   text, and nothing passes N tokens. With `final` (two models, and pi reads only the second) the second model does not
   draft: it writes one token from pi. How much a model drafts, and what the drafter proposes and from which laws,
   depends on a memory of all turns before and on the text, the drafter's rows also on what it has proposed.

   The chain stores the law of a token where the header stores which model drew it: that model's row at that position.
   Before the token of `final` the header needs no test that nothing is cached. Not covered: rows that are not laws (the
   header reports a status), random numbers (every draw and coin here is independent of all others), and where decoding
   stops before N tokens: here an accepted end of text ends the turn, and decoding goes on behind it.

   The proof: let the value of a state be what verifying all of its cached drafts would give. A token drafted behind
   them does not change it (`value_add`, a mean over the token), nor does deciding the first of them (a mean over the
   coin). So a turn does not. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Collaborative.
Variables (T : finType) (R : realFieldType) (M : Type).

(* The cached drafts: each token with the law that it was drawn from. *)
Definition drafts : Type := seq (T * (T -> R)).
Implicit Types (m : M) (y z : T) (q : T -> R) (s : seq T) (c d : drafts) (V : seq T -> R).

Definition tokens c : seq T := [seq x.1 | x <- c].

(* What is kept between turns. ends k: model k has rows for the positions before it. *)
Record state := State { memory : M; text : seq T; cached : drafts; ends : nat -> nat }.

(* ---- the decoder ------------------------------------------------------------------------------------------------- *)

(* n: the number of models. row k s: the row of model k after the text s. gamma, proposed: the most that model k drafts
   in a turn, and the drafter. proposal: the drafter's row after the text and the cached drafts, if it has one.
   learn: the memory after a turn; it may use all that is known then. N: the length of the text at the end. *)
Variables (n : nat) (row : nat -> seq T -> T -> R) (pi : seq T -> T -> R) (end_of_text : pred T) (final : bool)
  (gamma : M -> seq T -> nat -> nat) (proposed : M -> seq T -> nat) (proposal : M -> seq T -> drafts -> option (T -> R))
  (learn : M -> state -> M) (N : nat).

(* Up to `count` tokens, drawn one by one from the rows that `next` gives, behind c; then K. *)
Fixpoint draft (next : drafts -> option (T -> R)) (count : nat) c (K : drafts -> R) : R :=
  if count is count'.+1 then
    if next c is Some q then
      draw q (fun y => if end_of_text y then K (rcons c (y, q)) else draft next count' (rcons c (y, q)) K)
    else K c
  else K c.

(* Decides the cached tokens while every model has a row. `go` where no other is decided, `ended` after an accepted end
   of text, `rejected` with the text after a rejection. *)
Fixpoint verify (scored : nat -> bool) s c (go ended : seq T -> drafts -> R) (rejected : seq T -> R) : R :=
  if c is (y, q) :: c' then
    if (size s < N)%N && scored (size s) then
      keep_or_replace (pi s) q y
        (if end_of_text y then ended (rcons s y) c' else verify scored (rcons s y) c' go ended rejected)
        (fun z => rejected (rcons s z))
    else go s c
  else go s c.

Definition unscored (e : nat -> nat) s (k : nat) : bool := (e k <= size s)%N.
(* The first model without a row for the first cached token; the last model if there is none. *)
Definition model_of_turn (e : nat -> nat) s : nat := minn (find (unscored e s) (iota 0 n)) n.-1.
Definition all_scored (e : nat -> nat) (position : nat) : bool := all (fun k => position < e k)%N (iota 0 n).
Definition ends_text c : bool := if rev c is (y, _) :: _ then end_of_text y else false.
Definition set_end (e : nat -> nat) (k v : nat) : nat -> nat := fun i => if i == k then v else e i.

(* One turn; K: the value of the state that it leaves. *)
Definition collaborative_turn (st : state) (K : state -> R) : R :=
  let m := memory st in let s := text st in
  let leave s' c' e := K (State (learn m (State m s' c' e)) s' c' e) in
  let fresh := nilp (cached st) in
  let e := if fresh then fun=> 0%N else ends st in
  draft (proposal m s) (if fresh then minn (proposed m s) (N - size s) else 0%N) (cached st) (fun c =>
    let sent := (size s + size c)%N in
    let k := model_of_turn e s in
    let e1 := set_end e k sent.+1 in
    let count := if ends_text c then 0%N else minn (gamma m s k) (N - sent) in
    verify (all_scored e1) s c
      (fun s' c' =>
        if [&& final, k == 1%N, nilp c' & (0 < count)%N] then draw (pi s') (fun z => leave (rcons s' z) [::] e1)
        else draft (fun d => Some (row k (s' ++ tokens d))) count c' (fun d =>
               leave s' d (set_end e1 k (maxn sent.+1 (size s' + size d)))))
      (fun s' c' => leave s' c' e1)
      (fun s' => leave s' [::] (fun=> 0%N))).

(* Turns until the text has N tokens; f: the value of the final text. *)
Fixpoint collaborative_decode (fuel : nat) (st : state) (f : seq T -> R) : R :=
  if (N <= size (text st))%N then f (take N (text st))
  else if fuel is fuel'.+1 then collaborative_turn st (fun st' => collaborative_decode fuel' st' f) else 0.

(* ---- the value of a state ---------------------------------------------------------------------------------------- *)

Hypothesis pi_law : forall s, law (pi s).
Hypothesis row_law : forall k s, law (row k s).
Hypothesis proposal_law : forall m s c q, proposal m s c = Some q -> law q.

(* V of the text, if all that is cached was verified now. *)
Fixpoint value V s c : R :=
  if c is (y, q) :: c' then keep_or_replace (pi s) q y (value V (rcons s y) c') (fun z => V (rcons s z)) else V s.

Lemma draw_keep (r q L : T -> R) y (G : T -> R) (h : T -> R) :
  law L -> draw L (fun z => keep_or_replace r q y (G z) h) = keep_or_replace r q y (draw L G) h.
Proof. by move=> hL; rewrite /keep_or_replace /coin draw_add draw_scale draw_law_const. Qed.

(* One more draft behind those that are cached, drawn from the law that is stored with it. *)
Lemma value_add V s c L : promised pi V -> law L -> draw L (fun y => value V s (rcons c (y, L))) = value V s c.
Proof.
move=> hV hL; elim: c s => [|[z q] c ih] s /=; last by rewrite draw_keep // ih.
by rewrite [RHS]hV; apply: (keep_or_replace_emits_pi (fun z => V (rcons s z))).
Qed.

Lemma value_draft V s (next : drafts -> option (T -> R)) count c :
  promised pi V -> (forall d q, next d = Some q -> law q) ->
  draft next count c (value V s) = value V s c.
Proof.
move=> hV hn; elim: count c => //= count ih c; case e: (next c) => [q|] //.
rewrite -(value_add s c hV (hn _ _ e)); apply: draw_ext => y; by case: (end_of_text y); rewrite ?ih.
Qed.

Lemma value_verify V scored s c : verify scored s c (value V) (value V) V = value V s c.
Proof.
elim: c s => //= [[y q] c] ih s; case: ifP => // _; congr keep_or_replace.
by case: (end_of_text y); rewrite ?ih.
Qed.

Lemma draft_ext (next : drafts -> option (T -> R)) count c (K K' : drafts -> R) :
  (forall d, (size c <= size d)%N -> (c = [::] -> (0 < count)%N -> next [::] -> d <> [::]) -> K d = K' d) ->
  draft next count c K = draft next count c K'.
Proof.
elim: count c => [|count ih] c h /=; first by apply: h.
case e: (next c) => [q|]; last by apply: h => // c0; rewrite c0 in e; rewrite e.
have long d y : (size (rcons c (y, q)) <= size d)%N -> K d = K' d.
  rewrite size_rcons => le; apply: h; first exact: ltnW.
  by move=> _ _ _ d0; rewrite d0 in le.
apply: draw_ext => y; case: ifP => _; first exact: (long _ y).
by apply: ih => d le _; apply: long le.
Qed.

Lemma verify_ext scored s c (go go' ended ended' : seq T -> drafts -> R) (rejected rejected' : seq T -> R) :
  (forall s' c', (size s < size s')%N -> go s' c' = go' s' c') ->
  (c = [::] \/ ~~ ((size s < N)%N && scored (size s)) -> go s c = go' s c) ->
  (forall s' c', (size s < size s')%N -> ended s' c' = ended' s' c') ->
  (forall s', (size s < size s')%N -> rejected s' = rejected' s') ->
  verify scored s c go ended rejected = verify scored s c go' ended' rejected'.
Proof.
elim: c s => [|[y q] c ih] s hg h0 he hr /=; first by apply: h0; left.
case: ifP => hs; last by apply: h0; right; rewrite hs.
have lt z : (size s < size (rcons s z))%N by rewrite size_rcons.
have up z s' : (size (rcons s z) < size s')%N -> (size s < size s')%N.
  by rewrite size_rcons; apply: leq_trans.
rewrite /keep_or_replace; congr (coin _ _ _); last by apply: draw_ext => z; apply: hr.
case: ifP => _; first exact: he.
apply: ih => [s' c' l|_|s' c' l|s' l]; [|exact: hg| |].
- by apply: hg; apply: up l.
- by apply: he; apply: up l.
- by apply: hr; apply: up l.
Qed.

(* One turn does not change the expected value of the text, whatever was cached. *)
Theorem collaborative_turn_keeps_value V st : promised pi V ->
  collaborative_turn st (fun st' => value V (text st') (cached st')) = value V (text st) (cached st).
Proof.
move=> hV; rewrite /collaborative_turn /=; set count0 := (if nilp _ then _ else 0%N).
rewrite -(value_draft (text st) count0 (cached st) hV (proposal_law (m := memory st) (s := text st))).
apply: draft_ext => c _ _; set scored := all_scored _; rewrite -(value_verify V scored _ c).
have go k s' c' count : (if [&& final, k == 1%N, nilp c' & (0 < count)%N] then draw (pi s') (fun z => V (rcons s' z))
  else draft (fun d => Some (row k (s' ++ tokens d))) count c' (value V s')) = value V s' c'.
  case: ifP => [/and4P [_ _ /nilP -> _]|_]; first by rewrite -hV.
  by apply: value_draft => // d q [<-].
by apply: verify_ext => * //; apply: go.
Qed.

(* ---- the decoder ends -------------------------------------------------------------------------------------------- *)

Hypothesis models : (0 < n)%N.
Hypothesis model_0_drafts : forall m s, (0 < gamma m s 0)%N.

(* An upper bound on the turns that are left: for each token that is still to come one turn for every model and two
   more; for the next token those of the models that have not scored the first cached token. *)
Definition not_scored (e : nat -> nat) s : nat := \sum_(k < n) unscored e s k.
Definition turns_left (st : state) : nat :=
  ((N - size (text st)) * n.+2 + (if nilp (cached st) then n.+1 else not_scored (ends st) (text st)))%N.

Lemma not_scored_le e s : (not_scored e s <= n)%N.
Proof.
by rewrite -[X in (_ <= X)%N]card_ord -sum1_card; apply: leq_sum => k _; apply: leq_b1.
Qed.

Lemma longer_left s m' s' c' e' w : (size s < N)%N -> (size s < size s')%N ->
  (turns_left (State m' s' c' e') < (N - size s) * n.+2 + w)%N.
Proof.
move=> sN ss; apply: (@leq_trans ((N - size s) * n.+2)); last exact: leq_addr.
have -> : (N - size s = (N - (size s).+1).+1)%N by rewrite -subSn.
rewrite mulSn addnC /turns_left /= -addnS leq_add //; first by rewrite leq_mul2r leq_sub2l ?orbT.
by case: ifP => _; rewrite ltnS // leqW // not_scored_le.
Qed.

Lemma model_of_turn_lt e s : (model_of_turn e s < n)%N.
Proof. by rewrite /model_of_turn (leq_ltn_trans (geq_minr _ _)) // prednK. Qed.

(* If a model has not scored the first cached token after model k has, model k had not before. *)
Lemma model_of_turn_unscored e s v :
  ~~ all_scored (set_end e (model_of_turn e s) v) (size s) -> (size s < v)%N -> unscored e s (model_of_turn e s).
Proof.
move=> h sv; have /hasP [k kn ku] : has (unscored e s) (iota 0 n).
  move: h; rewrite /all_scored -has_predC => /hasP [k kn]; rewrite /= /set_end -leqNgt.
  case: eqP => [_|_ ku]; first by rewrite leqNgt sv.
  by apply/hasP; exists k.
have hk : has (unscored e s) (iota 0 n) by apply/hasP; exists k.
have lt : (find (unscored e s) (iota 0 n) < n)%N by rewrite -{2}(size_iota 0 n) -has_find.
have := nth_find 0%N hk; rewrite nth_iota // add0n /model_of_turn => hu.
by rewrite (minn_idPl _) // -ltnS prednK.
Qed.

(* Fewer models are left when one more has scored. *)
Lemma not_scored_set e s k v v' : (k < n)%N -> unscored e s k -> (size s < v)%N -> (size s < v')%N ->
  (not_scored (set_end (set_end e k v) k v') s < not_scored e s)%N /\ (not_scored (set_end e k v) s < not_scored e s)%N.
Proof.
move=> kn ku sv sv'; pose K := Ordinal kn.
have lt e' : (forall i, i != k -> e' i = e i) -> (size s < e' k)%N -> (not_scored e' s < not_scored e s)%N.
  move=> he hk; rewrite /not_scored (bigD1 K) //= [X in (_ < X)%N](bigD1 K) //= ku.
  have -> : unscored e' s k = false by rewrite /unscored leqNgt hk.
  rewrite add0n add1n ltnS; apply: leq_sum => i ne.
  by rewrite /unscored he.
by split; apply: lt => [i /negbTE ne|]; rewrite /set_end ?ne ?eqxx.
Qed.

(* What follows a turn only counts in states from which fewer turns are left. *)
Theorem collaborative_turn_advances st (K K' : state -> R) : (size (text st) < N)%N ->
  (forall st', (turns_left st' < turns_left st)%N -> K st' = K' st') ->
  collaborative_turn st K = collaborative_turn st K'.
Proof.
case: st => m s c0 e0 /= sN hK; rewrite /collaborative_turn /=.
set e := (if nilp c0 then fun=> 0%N else e0); apply: draft_ext => c le _.
set k := model_of_turn e s; set e1 := set_end e k _; set count := if ends_text c then _ else _.
have longer st' : (size s < size (text st'))%N -> K st' = K' st'.
  by case: st' => m' s' c' e' ss; apply: hK; apply: longer_left.
have lts : (size s < (size s + size c).+1)%N by rewrite ltnS leq_addr.
apply: verify_ext => [s' c' ss|none|s' c' ss|s' ss]; try exact: longer.
  case: ifP => _; first by apply: draw_ext => z; apply: longer; rewrite /= size_rcons ltnW // ltnS.
  by apply: draft_ext => d _ _; apply: longer.
case: ifP => _; first by apply: draw_ext => z; apply: longer; rewrite /= size_rcons.
apply: draft_ext => d cd some; apply: hK; rewrite /turns_left /= ltn_add2l.
have [c0nil|c0nil] := boolP (nilp c0).
- have k0 : k = 0%N.
    by rewrite /k /e c0nil /= /model_of_turn; case: (n) models => //= n' _; rewrite min0n.
  have -> : nilp d = false.
    apply/negbTE/negP => /nilP d0; have c_0 : c = [::] by apply: size0nil; move: cd; rewrite d0 leqn0 => /eqP.
    apply: (some c_0) => //.
    by rewrite /count c_0 /= k0 addn0 leq_min model_0_drafts subn_gt0.
  by rewrite ltnS not_scored_le.
- have cn : (0 < size c)%N by apply: leq_trans le; rewrite lt0n.
  have dn : nilp d = false by apply/negbTE; rewrite /nilp -lt0n (leq_trans cn).
  have {}none : ~~ all_scored e1 (size s) by case: none => [c_0|]; [rewrite c_0 in cn | rewrite sN].
  have ee : e = e0 by rewrite /e (negbTE c0nil).
  rewrite dn -ee; have ku : unscored e s k by apply: model_of_turn_unscored none lts.
  apply: (proj1 (@not_scored_set e s k _ _ _ ku lts _)); first exact: model_of_turn_lt.
  by rewrite leq_max lts.
Qed.

(* ---- the law ----------------------------------------------------------------------------------------------------- *)

Lemma continued_finished f s : (N <= size s)%N -> continued pi N f s = f (take N s).
Proof. by rewrite -subn_eq0 /continued => /eqP ->. Qed.

(* Where the text has its N tokens, drafts do not matter. *)
Lemma value_finished f s c : (N <= size s)%N -> value (continued pi N f) s c = f (take N s).
Proof.
elim: c s => [|[y q] c ih] s h /=; first exact: continued_finished.
have h' z : (N <= size (rcons s z))%N by rewrite size_rcons leqW.
have t z : take N (rcons s z) = take N s by rewrite -cats1 takel_cat.
rewrite /keep_or_replace ih // t (draw_ext _ (g := fun=> f (take N s))); last first.
  by move=> z; rewrite continued_finished // t.
rewrite /coin draw_law_const; first by rewrite -mulrDl addrC subrK mul1r.
by apply: norm_or_law => // v; apply: residual_ge0.
Qed.

(* From any state between two turns: the value of its text and of what is cached. *)
Lemma collaborative_decode_value f fuel st : (turns_left st <= fuel)%N ->
  collaborative_decode fuel st f = value (continued pi N f) (text st) (cached st).
Proof.
elim: fuel st => [|fuel ih] st le /=; case: (leqP N (size (text st))) => sN; try by rewrite value_finished.
- move: le; rewrite leqn0 /turns_left addn_eq0 muln_eq0 orbF subn_eq0 => /andP [].
  by rewrite leqNgt sN.
- rewrite -(collaborative_turn_keeps_value st (continued_promised N f pi_law)).
  by apply: collaborative_turn_advances => // st' lt; apply: ih; rewrite -ltnS (leq_trans lt).
Qed.

Theorem collaborative_decode_has_law m s e f fuel : ((N - size s).+1 * n.+2 <= fuel)%N ->
  collaborative_decode fuel (State m s [::] e) f = continued pi N f s.
Proof.
move=> le; rewrite collaborative_decode_value //; apply: leq_trans le; rewrite /turns_left /= mulSn addnC.
by rewrite leq_add2r.
Qed.

End Collaborative.

(* From the empty text: the decoder writes t with the probability that pi gives it. *)
Corollary collaborative_decode_probability (T : finType) (R : realFieldType) (M : Type) n row (pi : seq T -> T -> R)
  end_of_text final gamma proposed proposal learn (m : M) e (t : seq T) :
  (forall s, law (pi s)) -> (forall k s, law (row k s)) -> (forall m s c q, proposal m s c = Some q -> law q) ->
  (0 < n)%N -> (forall m s, 0 < gamma m s 0)%N ->
  collaborative_decode n row pi end_of_text final gamma proposed proposal learn (size t) ((size t).+1 * n.+2)
    (State m [::] [::] e) (fun u => (u == t)%:R) = probability pi [::] t.
Proof.
move=> *; rewrite collaborative_decode_has_law ?subn0 //; exact: probability_of_text.
Qed.
